// The section for flows: throughput, watermark, state and errors of each flow.

import { html, useMemo } from "/page/vendor/ui.js";
import { Empty, Panel, ProblemBox, State } from "/page/parts/box.js";
import { bytes, count, duration, rate } from "/page/parts/numbers.js";
import { Table } from "/page/parts/table.js";
import { useFetched } from "/page/requests.js";
import { FlowDetail } from "/page/sections/flows/detail.js";
import { shortDuration, heldBy, lagOf, missingWatermarkText, toneOf, watermarkDelay } from "/page/sections/flows/text.js";

const COLUMNS = [
  { id: "name", title: "Flow", value: (row) => row.name, show: (row) => html`<strong>${row.name}</strong>` },
  { id: "state", title: "State", value: (row) => row.state, show: (row) => html`<${State} state=${row.cause && row.state === "running" ? `${row.state}, bottleneck` : row.state} kind=${toneOf(row)} title=${row.why} />` },
  { id: "in", title: "In", value: (row) => row.per_s_in, show: (row) => rate(row.per_s_in), align: "right" },
  { id: "out", title: "Out", value: (row) => row.per_s_out, show: (row) => rate(row.per_s_out), align: "right", phone: false },
  { id: "latency", title: "Batch", about: "Duration of the last batch, from planning to commit", value: (row) => row.latency_ms, show: (row) => (row.latency_ms === null ? "–" : duration(row.latency_ms / 1000)), align: "right", phone: false },
  { id: "lag", title: "Unread", about: "Unread records, and the age of the oldest one", value: (row) => row.lag?.records, show: (row) => lagOf(row.lag), align: "right" },
  { id: "watermark", title: "Watermark", about: "How far event time is behind the clock, and the input that holds it back", value: (row) => row.delay_s, show: (row) => (row.delay_s === null ? html`<span class="quiet">${row.known ? missingWatermarkText(row) : "–"}</span>` : html`${shortDuration(row.delay_s)} ago${heldBy(row) && html`<span class="quiet">, held by ${heldBy(row)}</span>`}`), phone: false },
  { id: "kept", title: "State size", about: "Size of the state that the flow keeps between batches", value: (row) => row.state_bytes, show: (row) => (row.state_rows ? html`<span title=${`${count(row.state_rows)} rows`}>${bytes(row.state_bytes)}</span>` : row.state_rows === 0 ? "none" : "–"), align: "right", phone: false },
  { id: "late", title: "Late", value: (row) => row.late, show: (row) => count(row.late), align: "right", phone: false },
  { id: "dead", title: "Dead", value: (row) => row.dead, show: (row) => (row.dead ? html`<span class="flow-dead">${count(row.dead)}</span>` : count(row.dead)), align: "right" },
];

/** Return all flows of the app, including those without live numbers. */
function useFlows(api, now) {
  const [app, problem] = useFetched(api, "/v1/app");
  const flows = useMemo(() => app?.nodes.filter((node) => node.kind === "flow").map(({ name }) => {
    const node = now?.nodes?.[`flow:${name}`];
    return { latency_ms: null, ...node, known: node !== undefined, name, delay_s: node ? watermarkDelay(node, now) : null };
  }), [app, now]);
  return [flows, problem];
}

function View({ path, now, go, api }) {
  const [flows, problem] = useFlows(api, now);
  if (path.length > 0) return html`<${FlowDetail} key=${path[0]} name=${path[0]} part=${path[1] ?? "now"} now=${now} api=${api} />`;
  if (!flows) return problem ? html`<${ProblemBox} problem=${problem} />` : html`<p class="quiet">Loading the flows…</p>`;
  if (flows.length === 0) return html`<${Empty} title="The app has no flows" text="A flow is a function with @app.flow that derives a topic from other topics. The app's flows appear here." />`;
  return html`<div class="page-head"><h1>Flows</h1><span class="quiet">${flows.length} in the app</span></div>
    <${Panel}><${Table} label="Flows" columns=${COLUMNS} rows=${flows} rowKey=${(row) => row.name} onOpen=${(row) => go("flows", [row.name])} find=${flows.length > 8} /><//>`;
}

export default {
  id: "flows",
  title: "Flows",
  key: "f",
  icon: html`<svg viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.4" stroke-linecap="round"><path d="M1.5 5c2-2.5 4.5-2.5 6.500 0s4.500 2.500 6.500 0M1.500 11c2-2.500 4.500-2.500 6.500 0s4.500 2.500 6.500 0" /></svg>`,
  badge: (now) => {
    const failed = Object.entries(now.nodes ?? {}).filter(([id, node]) => id.startsWith("flow:") && node.state === "failed").length;
    return failed > 0 ? String(failed) : "";
  },
  View,
};
