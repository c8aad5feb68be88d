// One flow: charts, last batches, Spark's plan, and the last error with its line in the user's code.

import { html, useEffect, useMemo, useState } from "/page/vendor/ui.js";
import { address } from "/page/address.js";
import { useHistory } from "/page/history.js";
import { Copy, Empty, Panel, ProblemBox, Stat, State, Tabs } from "/page/parts/box.js";
import { Chart } from "/page/parts/chart.js";
import { ago, bytes, count, duration, exactly, rate, time } from "/page/parts/numbers.js";
import { Table } from "/page/parts/table.js";
import { shortDuration, heldBy, missingWatermarkText, toneOf, watermarkDelay } from "/page/sections/flows/text.js";

const EVERY_MS = 5_000;

/** Return [detail, problem], which are loaded every few seconds while the flow is open. */
function useDetail(api, name) {
  const [detail, setDetail] = useState(null);
  const [problem, setProblem] = useState(null);
  useEffect(() => {
    const controller = new AbortController();
    let timer;
    const load = async () => {
      try {
        setDetail(await api.get(`/v1/flows/${encodeURIComponent(name)}`, {}, { signal: controller.signal }));
        setProblem(null);
      } catch (error) {
        if (controller.signal.aborted) return;
        setProblem(error);
        if (error.status === 404) return;
      }
      timer = setTimeout(load, EVERY_MS);
    };
    load();
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, [name]);
  return [detail, problem];
}

const FlowError = ({ error, now }) => html`<div class="problem" data-test="flow-error">
  <strong>${error.text}</strong>
  ${error.file && html`<p class="mono">${error.file}${error.line ? `:${error.line}` : ""} <${Copy} text=${`${error.file}${error.line ? `:${error.line}` : ""}`} /></p>`}
  ${error.hint && html`<p class="problem-hint">${error.hint}</p>`}
  <p class="quiet">${error.code ? `${error.code}, ` : ""}<span title=${time(error.at_ms)}>${ago(error.at_ms, now?.at_ms)}</span></p>
</div>`;

const Charts = ({ name, now, api }) => {
  const history = useHistory(api, `flow:${name}`, now);
  const charts = useMemo(() => {
    const chart = (title, unit, ...fields) => ({ title, series: fields.map(([field, label, change]) => ({ label, unit, points: history.points(field, change) })) });
    const available = [
      chart("Throughput", "/s", ["per_s_in", "in"], ["per_s_out", "out"]),
      chart("Batch duration", "ms", ["latency_ms", "last"]),
      chart("Unread records", "", ["lag_records", "now"]),
      chart("Age of the oldest unread record", "s", ["lag_seconds", "age"]),
      chart("State size", "B", ["state_bytes", "size", (value) => value || null]),
      chart("Watermark behind the clock", "s", ["watermark_ms", "behind", (value, at_ms) => Math.max(0, (at_ms - value) / 1000)]),
    ];
    return available.filter(({ series }) => series.some((line) => line.points.some(([, value]) => value !== null)));
  }, [history]);
  if (history.problem) return html`<${ProblemBox} problem=${history.problem} />`;
  if (charts.length === 0) return html`<${Empty} title="Nothing measured yet" text="Numbers appear with the first batch." />`;
  return html`<div class="flow-charts">${charts.map((chart) => html`<${Panel} key=${chart.title}><${Chart} title=${chart.title} series=${chart.series} height=${150} /><//>`)}</div>`;
};

const BATCHES = [
  { id: "batch", title: "Batch", value: (row) => row.batch, align: "right" },
  { id: "at", title: "Committed", value: (row) => row.committed_ms, show: (row) => time(row.committed_ms) },
  { id: "in", title: "Rows in", value: (row) => row.rows_in, show: (row) => exactly(row.rows_in), align: "right" },
  { id: "out", title: "Rows out", value: (row) => row.rows_out, show: (row) => exactly(row.rows_out), align: "right" },
  { id: "late", title: "Late", value: (row) => row.late, align: "right" },
  { id: "dead", title: "Dead", value: (row) => row.dead, align: "right" },
  { id: "watermark", title: "Watermark", value: (row) => row.watermark_ms, show: (row) => time(row.watermark_ms), phone: false },
  { id: "rows", title: "State rows", value: (row) => row.state_rows, show: (row) => exactly(row.state_rows), align: "right", phone: false },
  { id: "bytes", title: "State size", value: (row) => row.state_bytes, show: (row) => bytes(row.state_bytes), align: "right", phone: false },
];

const INPUTS = [
  { id: "topic", title: "Topic", value: (row) => row.topic, show: (row) => html`<a href=${address("topics", [row.topic])}>${row.topic}</a>` },
  { id: "kind", title: "Kind", value: (row) => row.kind },
  { id: "time", title: "Event time", value: (row) => row.time, show: (row) => row.time ?? "none" },
  { id: "late", title: "Lateness", value: (row) => row.late_s, show: (row) => duration(row.late_s), align: "right", phone: false },
  { id: "seen", title: "Latest seen", value: (row) => row.seen_ms, show: (row) => time(row.seen_ms), align: "right", phone: false },
];

const words = (value) => (value === true ? "yes" : value === false ? "no" : value === null || value === undefined ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));

const Declared = ({ detail, now }) => {
  const rows = [
    ["Declared at", detail.declared && html`<span class="mono">${detail.declared.file}:${detail.declared.line}</span>`],
    ["Writes", html`<a href=${address("topics", [detail.output.topic])}>${detail.output.topic}</a>${detail.output.key?.length ? html` <span class="quiet">by ${detail.output.key.join(", ")}</span>` : ""}`],
    ["Name in the log", detail.output.log],
    ...Object.entries(detail.options ?? {}).map(([name, value]) => [name[0].toUpperCase() + name.slice(1), words(value)]),
    ...(detail.generation ? [["Generation", `${detail.generation.generation}, since ${time(detail.generation.started_ms)} (${ago(detail.generation.started_ms, now?.at_ms)})`], ["Started because", detail.generation.reason], ...(detail.generation.late ? [["Late events", detail.generation.late]] : [])] : [["Generation", "not started"]]),
    ...(detail.others ?? []).map((other) => [`Generation ${other.generation}`, `${other.role}, ${other.behind === null ? "not begun" : `${exactly(other.behind)} records behind`}; writes ${other.log}; begun because: ${other.reason}`]),
    ["Progress topic", detail.topics?.progress],
    ["Late records go to", detail.topics?.late && html`<a href=${address("topics", [detail.topics.late])}>${detail.topics.late}</a>`],
    ["Dead letters go to", detail.topics?.dead && html`<a href=${address("dead", [detail.topics.dead])}>${detail.topics.dead}</a>`],
  ].filter(([, value]) => value);
  return html`<${Panel} title="Reads"><${Table} label="Inputs" columns=${INPUTS} rows=${detail.inputs} rowKey=${(row) => row.topic} wrap=${true} /><//>
    <${Panel} title="Declaration, and its state in the log"><dl class="facts">${rows.map(([name, value]) => html`<dt key=${`t${name}`}>${name}</dt><dd key=${`d${name}`}>${value}</dd>`)}</dl><//>`;
};

const Plan = ({ detail }) =>
  detail.plan ? html`<${Panel} title="Spark's plan" aside=${html`<${Copy} text=${detail.plan} />`}><pre class="code flow-plan" tabindex="0" data-test="plan">${detail.plan}</pre><//>` : html`<${Empty} title="No plan to show" text=${detail.plan_why} />`;

export function FlowDetail({ name, part, now, api }) {
  const [detail, problem] = useDetail(api, name);
  const node = now?.nodes?.[`flow:${name}`];
  const tabs = ["now", "batches", "declared", "plan"].map((id) => ({ id, title: { now: "Now", batches: "Batches", declared: "Declaration", plan: "Plan" }[id], href: address("flows", id === "now" ? [name] : [name, id]) }));
  const current = tabs.some((tab) => tab.id === part) ? part : "now";
  const delay = node ? watermarkDelay(node, now) : null;
  const dead = detail?.topics?.dead;
  return html`<div class="page-head">
      <h1><a class="crumb" href=${address("flows")}>Flows</a> ${name}</h1>
      ${node && html`<${State} state=${node.cause && node.state === "running" ? `${node.state}, bottleneck` : node.state} kind=${toneOf(node)} />`}
      <div class="page-aside"><a href=${address("graph", [], { node: `flow:${name}` })}>Show in the graph</a></div>
    </div>
    ${node?.why && !detail?.error && html`<p class="flow-why">${node.why}</p>`}
    ${problem && html`<${ProblemBox} problem=${problem} />`}
    ${detail?.error && html`<${FlowError} error=${detail.error} now=${now} />`}
    ${node && html`<div class="stats">
      <${Stat} label="In" value=${rate(node.per_s_in)} />
      <${Stat} label="Out" value=${rate(node.per_s_out)} />
      <${Stat} label="Last batch" value=${node.latency_ms === null ? "–" : duration(node.latency_ms / 1000)} note=${node.batch === null ? "" : `no. ${exactly(node.batch)}`} />
      <${Stat} label="Unread" value=${count(node.lag?.records)} note=${node.lag?.seconds >= 1 ? `oldest ${duration(node.lag.seconds)}` : ""} state=${node.cause ? "warn" : ""} />
      <${Stat} label="Watermark" value=${delay === null ? "–" : `${shortDuration(delay)} ago`} note=${delay === null ? missingWatermarkText(node) : heldBy(node) ? `held by ${heldBy(node)}` : ""} title=${time(node.watermark_ms)} />
      <${Stat} label="State" value=${node.state_rows ? bytes(node.state_bytes) : "none"} note=${node.state_rows ? `${count(node.state_rows)} rows` : ""} />
      <${Stat} label="Late" value=${count(node.late)} />
      <${Stat} label="Dead letters" value=${node.dead && dead ? html`<a href=${address("dead", [dead])} data-test="to-dead">${count(node.dead)}</a>` : count(node.dead)} state=${node.dead ? "bad" : ""} />
    </div>`}
    <${Tabs} label="Parts of the flow" tabs=${tabs} current=${current} />
    ${current === "now" && html`<${Charts} name=${name} now=${now} api=${api} />`}
    ${current !== "now" && !detail && !problem && html`<p class="quiet">Loading the flow…</p>`}
    ${current === "batches" && detail && html`<${Panel} title="Last batches"><${Table} label="Last batches" columns=${BATCHES} rows=${detail.batches} rowKey=${(row) => row.batch} empty="No batch was committed yet." /><//>`}
    ${current === "declared" && detail && html`<${Declared} detail=${detail} now=${now} />`}
    ${current === "plan" && detail && html`<${Plan} detail=${detail} />`}`;
}
