// The section for topics of the log: their size, growth, and all messages.

import { html, useMemo, useState } from "/page/vendor/ui.js";
import { address } from "/page/address.js";
import { Panel, ProblemBox } from "/page/parts/box.js";
import { bytes, count, duration, exactly, rate } from "/page/parts/numbers.js";
import { Table } from "/page/parts/table.js";
import { TopicDetail } from "/page/sections/topics/detail.js";
import { usePolled } from "/page/requests.js";
import { localStore } from "/page/storage.js";

const INTERNAL = "headrace.topics.internal";

const retentionText = (row) => (row.cleanup?.includes("delete") === false ? "latest per key" : row.retention_s !== null ? duration(row.retention_s) : row.retention_bytes !== null ? `${bytes(row.retention_bytes)} per partition` : row.cleanup ? "everything" : "–");

const COLUMNS = [
  { id: "topic", title: "Topic", value: (row) => row.topic, show: (row) => html`<a href=${address("topics", [row.topic])}><strong>${row.topic}</strong></a>${row.offline > 0 && html` <span class="topic-offline">${row.offline} without a leader</span>`}` },
  { id: "kind", title: "Kind", about: "The kind that the app declares", value: (row) => row.kind, show: (row) => html`<span class="quiet">${row.kind ?? ""}</span>`, width: 100, phone: false },
  { id: "partitions", title: "Partitions", value: (row) => row.partitions, align: "right", width: 100, phone: false },
  { id: "records", title: "Records", value: (row) => row.records, show: (row) => html`<span title=${exactly(row.records)}>${count(row.records)}</span>`, align: "right", width: 110 },
  { id: "per_s", title: "Now", about: "Written records per second", value: (row) => row.per_s ?? -1, show: (row) => rate(row.per_s), align: "right", width: 100 },
  { id: "bytes", title: "Size", value: (row) => row.bytes ?? -1, show: (row) => bytes(row.bytes), align: "right", width: 110 },
  { id: "keeps", title: "Retention", about: "How long, or how much, the topic keeps", value: (row) => row.retention_s ?? row.retention_bytes ?? Infinity, show: retentionText, align: "right", width: 120, phone: false },
];

function TopicList({ go, api }) {
  const [data, problem] = usePolled(api, "/v1/log/topics", 3_000);
  const [internal, setInternal] = useState(localStore.get(INTERNAL) === "yes");
  const all = data?.topics;
  const rows = useMemo(() => all?.filter((entry) => internal || !entry.internal), [all, internal]);
  const hidden = all ? all.filter((entry) => entry.internal).length : 0;
  const switched = (event) => {
    localStore.set(INTERNAL, event.target.checked ? "yes" : "no");
    setInternal(event.target.checked);
  };
  return html`<div class="page-head"><h1>Topics</h1>
      ${rows && html`<span class="quiet">${exactly(rows.length)} in the log, ${bytes(rows.some((row) => row.bytes !== null) ? rows.reduce((sum, row) => sum + (row.bytes ?? 0), 0) : null)}</span>`}
      <div class="page-aside"><label class="switch"><input type="checkbox" checked=${internal} onChange=${switched} data-test="internal" /> Internal topics${hidden > 0 ? ` (${hidden})` : ""}</label></div>
    </div>
    ${problem && html`<${ProblemBox} problem=${problem} />`}
    ${rows ? html`<${Panel}><${Table} label="Topics" columns=${COLUMNS} rows=${rows} rowKey=${(row) => row.topic} onOpen=${(row) => go("topics", [row.topic])} order=${{ id: "topic", down: false }} find=${true} empty="The log has no topics." /><//>` : !problem && html`<p class="quiet">Loading the topics…</p>`}`;
}

const View = ({ path, query, go, api }) =>
  path.length > 0 ? html`<${TopicDetail} key=${path[0]} name=${path[0]} part=${path[1] ?? "messages"} query=${query} go=${go} api=${api} />` : html`<${TopicList} go=${go} api=${api} />`;

export default {
  id: "topics",
  title: "Topics",
  key: "t",
  icon: html`<svg viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.4" stroke-linejoin="round"><path d="M2 3.500h12M2 8h12M2 12.500h12M5 2v3M9 6.500v3M12 11v3" /></svg>`,
  View,
};
