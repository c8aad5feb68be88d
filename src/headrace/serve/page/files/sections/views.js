// The section for views: their list, and the rows, position and verification of each view.

import { Empty, Panel, ProblemBox, Stat, State, Tabs } from "/page/parts/box.js";
import { ago, count, duration, exactly } from "/page/parts/numbers.js";
import { Table } from "/page/parts/table.js";
import { html, useEffect, useState } from "/page/vendor/ui.js";
import { behindText, Position, toneOf } from "./views/position.js";
import { Proof } from "./views/proof.js";
import { Row } from "./views/row.js";
import { Rows } from "./views/rows.js";
import { positionText, storeText, useViewStatus, VERDICTS } from "./views/status.js";

const PARTS = ["position", "verify"];
const RETRY_MS = 3_000;
const icon = html`<svg viewBox="0 0 16 16" width="16" height="16" fill="none" stroke="currentColor" stroke-width="1.4" aria-hidden="true"><rect x="1.7" y="2.7" width="12.6" height="10.6" rx="1.5" /><path d="M1.7 6.2h12.6M6 6.2v7.1" /></svg>`;

const link = (view, ...more) => `#/${["views", view, ...more].map(encodeURIComponent).join("/")}`;

function View({ path, query, go, api }) {
  const { status, problem } = useViewStatus(api);
  const [name, part, ...rest] = path;
  if (status === null) return problem ? html`<${ProblemBox} problem=${problem} />` : html`<p class="view-note">Loading the views…</p>`;
  if (!name) return html`<${List} status=${status} problem=${problem} go=${go} />`;
  const view = status.views.find((view) => view.view === name);
  if (!view) {
    const back = html`<a href="#/views">All views</a>`;
    return html`<${Empty} title=${`No view ${name}`} text="The app has no view with this name, or the token does not allow reading it." action=${back} />`;
  }
  return html`<${Detail} key=${name} view=${view} views=${status.views} problem=${problem} part=${part} rowKey=${rest.join("/")} query=${query} go=${go} api=${api} />`;
}

const verdictState = (view) => (view.verified ? VERDICTS[view.verified.verdict]?.state : "");

const COLUMNS = [
  { id: "view", title: "View", value: (view) => view.view, show: (view) => html`<a href=${link(view.view)}>${view.view}</a>${view.answered_by !== view.view ? html` <small>served by ${view.answered_by}</small>` : ""}` },
  { id: "state", title: "State", width: 130, value: (view) => view.state, show: (view) => html`<${State} state=${view.state} kind=${toneOf(view)} title=${view.why} />` },
  { id: "rows", title: "Rows", align: "right", width: 110, value: (view) => view.rows, show: (view) => exactly(view.rows) },
  { id: "lag", title: "Lag", align: "right", width: 120, value: (view) => view.behind_records, show: (view) => lagText(view), about: "Records of the topic that the store has not applied yet" },
  { id: "position", title: "Position", phone: false, value: (view) => positionText(view.position, 1), show: (view) => html`<span title=${positionText(view.position)}>${positionText(view.position, 1)}</span>` },
  { id: "store", title: "Store", width: 130, phone: false, value: (view) => storeText(view.store) },
  { id: "topic", title: "Topic", phone: false, value: (view) => view.topic, show: (view) => html`<a href=${`#/topics/${encodeURIComponent(view.topic)}`}>${view.topic}</a>` },
  { id: "dead", title: "Dead", align: "right", width: 80, phone: false, value: (view) => view.dead, show: (view) => (view.dead ? html`<a class="view-bad" href="#/dead">${count(view.dead)}</a>` : count(view.dead)) },
  { id: "verified", title: "Last verified", width: 190, phone: false, value: (view) => view.verified?.began_ms ?? 0, show: (view) => html`<${Verified} view=${view} />` },
];

/** Return "0" or "412 · 3 s". A view that is computed on read is never behind. */
function lagText(view) {
  if (view.store === "onread") return "0";
  if (!view.behind_records) return count(view.behind_records);
  return `${count(view.behind_records)}${view.behind_seconds === null ? "" : ` · ${duration(view.behind_seconds)}`}`;
}

function Verified({ view }) {
  if (view.store === "onread") return html`<span class="quiet" title="This view is computed on each read and has no stored rows">–</span>`;
  if (!view.verified) return html`<a class="quiet" href=${link(view.view, "verify")}>never</a>`;
  const { verdict, began_ms, line } = view.verified;
  return html`<a class=${`view-verdict-short ${verdictState(view)}`} href=${link(view.view, "verify")} title=${line}>${VERDICTS[verdict]?.short ?? verdict}</a> <small>${ago(began_ms)}</small>`;
}

function List({ status, problem, go }) {
  const nothing = html`<${Empty} title="This app has no views" text="A view keeps the rows of a topic in a store, for queries." action=${html`<code>app.view("name", topic)</code>`} />`;
  return html`
    <div class="views-list" data-test="views">
      <header class="page-head"><h1>Views</h1><span class="quiet">Views keep the rows of topics in stores, for queries.</span></header>
      ${problem ? html`<${ProblemBox} problem=${problem} />` : ""}
      ${status.views.length === 0 ? nothing
        : html`<${Panel}><${Table} columns=${COLUMNS} rows=${status.views} rowKey=${(view) => view.view} onOpen=${(view) => go("views", [view.view])} find=${status.views.length > 8} label="Views" /><//>`}
      <p class="view-note" data-test="sql-note">
        ${status.sql
          ? html`Queries across views: <a href="#/sql">SQL</a>.`
          : html`This server does not run SQL. To enable it, run <code>pip install "headrace[sql]"</code> on the server and restart the server.`}
      </p>
    </div>`;
}

function Detail({ view, views, problem, part, rowKey, query, go, api }) {
  const { schema, error } = useSchema(view, api);
  const current = PARTS.includes(part) ? part : "rows";
  const isRow = part === "row";
  const search = (next) => go("views", isRow ? [view.view, "row", rowKey] : [view.view], next, { replace: true });
  const verdict = view.verified && VERDICTS[view.verified.verdict];
  return html`
    <div class="view-detail" data-test="view">
      <header class="page-head">
        <h1><a href="#/views" class="crumb">Views</a> ${view.view}</h1>
        <${State} state=${view.state} kind=${toneOf(view)} title=${view.why} />
        <nav class="page-aside view-links" aria-label="Source">
          <a href=${`#/graph?node=${encodeURIComponent(`view:${view.answered_by}`)}`}>Graph</a>
          <a href=${`#/topics/${encodeURIComponent(view.topic)}`}>Topic ${view.topic}</a>
          ${view.written_by ? html`<a href=${`#/flows/${encodeURIComponent(view.written_by)}`}>Flow ${view.written_by}</a>` : ""}
          <a href=${`#/sql?sql=${encodeURIComponent(`SELECT * FROM ${/^[a-z_][a-z0-9_]*$/.test(view.view) ? view.view : `"${view.view.replaceAll('"', '""')}"`} LIMIT 100`)}`}>SQL</a>
        </nav>
      </header>
      ${view.why ? html`<p class=${`view-why ${toneOf(view)}`}>${view.why}</p>` : ""}
      ${problem || error ? html`<${ProblemBox} problem=${problem ?? error} />` : ""}
      <div class="stats">
        <${Stat} label="Rows" value=${exactly(view.rows)} />
        <${Stat} label="Store" value=${storeText(view.store)} />
        <${Stat} label="Position" value=${view.position?.generation ? `batch ${exactly(view.position.batch)}` : positionText(view.position, 1)} note=${view.position?.generation ? `of generation ${view.position.generation}` : ""} title=${positionText(view.position)} />
        <${Stat} label="Lag" value=${behindText(view)} state=${view.behind_records ? "warn" : ""} />
        <${Stat} label="Dead letters" value=${view.dead === null ? "–" : count(view.dead)} state=${view.dead ? "bad" : ""} />
        <${Stat} label="Last verified" value=${verdict ? `${verdict.short}, ${ago(view.verified.began_ms)}` : "never"} state=${verdict?.state ?? ""} title=${view.verified?.line} />
      </div>
      <${Tabs} label="Parts of the view" current=${current} tabs=${[
        { id: "rows", title: "Rows", href: link(view.view) },
        { id: "position", title: "Position", href: link(view.view, "position") },
        { id: "verify", title: "Verify", href: link(view.view, "verify") },
      ]} />
      ${current === "position" ? html`<${Position} view=${view} views=${views} />` : ""}
      ${current === "verify" ? html`<${Proof} view=${view} api=${api} />` : ""}
      ${current === "rows" && schema
        ? html`<div class=${isRow ? "view-split" : ""}>
            <${Rows} schema=${schema} total=${view.rows} query=${query} api=${api} selected=${isRow ? rowKey : undefined} onSearch=${search}
              onOpen=${(key) => go("views", [view.view, "row", key], query)} />
            ${isRow ? html`<${Row} schema=${schema} rowKey=${rowKey} api=${api} onClose=${() => go("views", [view.view], query)} />` : ""}
          </div>`
        : ""}
      ${current === "rows" && !schema && !error ? html`<p class="view-note">${view.state === "serving" ? "Loading the rows…" : "No rows yet."}</p>` : ""}
    </div>`;
}

/** Load the view with its columns. Load it again if another view serves the name, or if the view starts to serve. */
function useSchema(view, api) {
  const [loaded, setLoaded] = useState({ schema: null, error: null });
  const [attempt, setAttempt] = useState(0);
  useEffect(() => {
    if (!loaded.error || (loaded.error.status >= 400 && loaded.error.status < 500)) return undefined;
    const timer = setTimeout(() => setAttempt(attempt + 1), RETRY_MS);
    return () => clearTimeout(timer);
  }, [loaded.error]);
  useEffect(() => {
    const controller = new AbortController();
    api.get(`/v1/views/${encodeURIComponent(view.view)}`, {}, { signal: controller.signal }).then(
      (schema) => setLoaded({ schema: schema.columns.length ? schema : null, error: null }),
      (error) => controller.signal.aborted || setLoaded({ schema: null, error }),
    );
    return () => controller.abort();
  }, [view.view, view.answered_by, view.state, view.position?.generation ?? 0, attempt]);
  return loaded;
}

export default { id: "views", title: "Views", key: "v", icon, View };
