// The section for alerts: those that fire now, their rules, and past changes.

import { html } from "/page/vendor/ui.js";
import { usePolled } from "/page/requests.js";
import { address } from "/page/address.js";
import { Empty, Panel, ProblemBox, State } from "/page/parts/box.js";
import { ago, time } from "/page/parts/numbers.js";
import { Table } from "/page/parts/table.js";

const EVERY_MS = 5_000;
const SECTIONS = { flow: "flows", view: "views", group: "groups" };

const About = ({ alert }) => html`<a href=${address(SECTIONS[alert.what] ?? "graph", [alert.name])}>${alert.what} ${alert.name}</a>`;

const firing = (now_ms) => [
  { id: "alert", title: "Alert", value: (row) => row.alert, show: (row) => html`<${State} state=${row.alert} kind="bad" />` },
  { id: "about", title: "About", value: (row) => `${row.what} ${row.name}`, show: (row) => html`<${About} alert=${row} />` },
  { id: "text", title: "Message", value: (row) => row.text },
  { id: "since", title: "Since", value: (row) => row.since_ms, show: (row) => html`<span title=${time(row.since_ms)}>${ago(row.since_ms, now_ms)}</span>`, align: "right" },
  { id: "when", title: "Rule", value: (row) => row.when, show: (row) => html`<code>${row.when}</code>`, phone: false },
];

const RULES = [
  { id: "alert", title: "Alert", value: (row) => row.alert },
  { id: "state", title: "State", value: (row) => row.state, show: (row) => html`<${State} state=${row.state} kind=${row.state === "firing" ? "bad" : "good"} />`, width: 120 },
  { id: "when", title: "Rule", value: (row) => row.when, show: (row) => html`<code>${row.when}</code>` },
];

const CHANGES = [
  { id: "at", title: "When", value: (row) => row.at_ms, show: (row) => time(row.at_ms) },
  { id: "state", title: "State", value: (row) => row.state, show: (row) => html`<${State} state=${row.state} />`, sort: false },
  { id: "alert", title: "Alert", value: (row) => row.alert },
  { id: "about", title: "About", value: (row) => `${row.what} ${row.name}`, show: (row) => html`<${About} alert=${row} />` },
  { id: "text", title: "Message", value: (row) => row.text, phone: false },
];

const keyOf = (row) => `${row.alert}/${row.what}/${row.name}`;

function View({ now, api }) {
  const [data, problem] = usePolled(api, "/v1/alerts", EVERY_MS);
  if (!data) return problem ? html`<${ProblemBox} problem=${problem} />` : html`<p class="quiet">Loading the alerts…</p>`;
  // The live document is newer than the polled one.
  const active = now?.alerts ?? data.firing;
  const names = new Set(active.map((alert) => alert.alert));
  const rules = data.rules?.map((rule) => ({ ...rule, state: names.has(rule.alert) ? "firing" : "quiet" }));
  return html`<div class="page-head"><h1>Alerts</h1><span class="quiet">${active.length === 0 ? "none firing" : `${active.length} firing`}</span></div>
    ${problem && html`<${ProblemBox} problem=${problem} />`}
    <${Panel} title="Firing" data-test="firing">
      ${active.length === 0 ? html`<${Empty} title="No alert is firing" text=${rules ? "No rule is violated." : "The log has no firing alert."} />` : html`<${Table} label="Firing alerts" columns=${firing(now?.at_ms)} rows=${active} rowKey=${keyOf} wrap=${true} />`}
    <//>
    <${Panel} title="Rules" data-test="rules">
      ${rules ? html`<${Table} label="Rules" columns=${RULES} rows=${rules} rowKey=${(row) => row.alert} wrap=${true} empty="The app has no rules, and the default rules are off." />` : html`<${Empty} title="This server does not know the rules" text=${data.rules_why} />`}
    <//>
    <${Panel} title="Changes" aside="the last 200, the newest first" data-test="changes">
      <${Table} label="Changes of alerts" columns=${CHANGES} rows=${data.changes} rowKey=${(row) => `${keyOf(row)}/${row.at_ms}/${row.state}`} find=${data.changes.length > 8} empty="No alert has ever fired." />
    <//>`;
}

export default {
  id: "alerts",
  title: "Alerts",
  key: "a",
  icon: html`<svg viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.4" stroke-linejoin="round"><path d="M8 2a4 4 0 0 0-4 4v3l-1.5 2.5h11L12 9V6a4 4 0 0 0-4-4zM6.5 13.500a1.500 1.500 0 0 0 3 0" /></svg>`,
  badge: (now) => (now.alerts?.length ? String(now.alerts.length) : ""),
  View,
};
