// The section for dead letters: their topics, the letters of each topic, and what can be done with them.

import { html } from "/page/vendor/ui.js";
import { usePolled } from "/page/requests.js";
import { Empty, Panel, ProblemBox } from "/page/parts/box.js";
import { bytes, exactly } from "/page/parts/numbers.js";
import { Table } from "/page/parts/table.js";
import { Letters } from "/page/sections/dead/letters.js";

const EVERY_MS = 5_000;
const KINDS = { flow: "flow", view: "view", spring: "Spring, topic" };

const counted = (id, title, about) => ({ id, title, about, value: (row) => row[id], show: (row) => exactly(row[id]), align: "right" });

const COLUMNS = [
  { id: "topic", title: "Topic", value: (row) => row.topic, show: (row) => html`<strong>${row.topic}</strong>` },
  { id: "of", title: "Letters of", value: (row) => `${KINDS[row.kind]} ${row.of}` },
  { id: "open", title: "Open", about: "Letters that no one has handled yet", value: (row) => row.open, show: (row) => html`<span class=${row.open > 0 ? "dead-some" : ""}>${exactly(row.open)}${row.unread > 0 ? "…" : ""}</span>`, align: "right" },
  counted("replayed", "Replayed", "Letters whose record was written back"),
  counted("settled", "Settled", "Letters whose record was processed after a rebuild"),
  counted("dismissed", "Dismissed", "Letters that a person dismissed"),
  { id: "bytes", title: "Size", value: (row) => row.bytes, show: (row) => bytes(row.bytes), align: "right", phone: false },
];

function View({ path, now, go, api }) {
  const [data, problem] = usePolled(api, path.length === 0 ? "/v1/dead" : null, EVERY_MS);
  const topics = data?.topics ?? null;
  if (path.length > 0) return html`<${Letters} key=${path[0]} topic=${path[0]} letterPath=${path.slice(1)} now=${now} go=${go} api=${api} />`;
  if (!topics) return problem ? html`<${ProblemBox} problem=${problem} />` : html`<p class="quiet">Loading the dead-letter topics…</p>`;
  const open = topics.reduce((sum, topic) => sum + topic.open, 0);
  return html`<div class="page-head"><h1>Dead letters</h1><span class="quiet">${open === 0 ? "none open" : `${exactly(open)} open`}</span></div>
    ${problem && html`<${ProblemBox} problem=${problem} />`}
    ${topics.length === 0
      ? html`<${Empty} title="No dead-letter topics" text="A value that a flow or a view rejects is stored with the reason. This app has no flows and no views." />`
      : html`<${Panel}><${Table} label="Dead-letter topics" columns=${COLUMNS} rows=${topics} rowKey=${(row) => row.topic} onOpen=${(row) => go("dead", [row.topic])} order=${{ id: "open", down: true }} find=${topics.length > 8} /><//>`}`;
}

export default {
  id: "dead",
  title: "Dead letters",
  key: "d",
  icon: html`<svg viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.4" stroke-linejoin="round"><path d="M1.5 3.5h13v9h-13zM1.5 4l6.500 5 6.500-5" /></svg>`,
  View,
};
