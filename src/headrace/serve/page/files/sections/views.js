// Views: what there is, how far each is, and its rows.

import { Empty, Panel, ProblemBox, Stat, State, Tabs } from "/page/parts/box.js";
import { ago, count, duration, exactly } from "/page/parts/numbers.js";
import { Table } from "/page/parts/table.js";
import { html, useEffect, useState } from "/page/vendor/ui.js";
import { behindText, Place, stateOf } from "./views/place.js";
import { Proof } from "./views/proof.js";
import { Row } from "./views/row.js";
import { Rows } from "./views/rows.js";
import { placeText, storeText, useStandings, VERDICTS } from "./views/standings.js";

const PARTS = ["position", "verify"];
const AGAIN_MS = 3_000;
const icon = html`<svg viewBox="0 0 16 16" width="16" height="16" fill="none" stroke="currentColor" stroke-width="1.4" aria-hidden="true"><rect x="1.7" y="2.7" width="12.6" height="10.6" rx="1.5" /><path d="M1.7 6.2h12.6M6 6.2v7.1" /></svg>`;

const link = (view, ...more) => `#/${["views", view, ...more].map(encodeURIComponent).join("/")}`;

function View({ path, query, go, api }) {
  const { told, problem } = useStandings(api);
  const [name, part, ...rest] = path;
  if (told === null) return problem ? html`<${ProblemBox} problem=${problem} />` : html`<p class="view-note">Asking…</p>`;
  if (!name) return html`<${List} told=${told} problem=${problem} go=${go} />`;
  const view = told.views.find((one) => one.view === name);
  if (!view) {
    const back = html`<a href="#/views">All views</a>`;
    return html`<${Empty} title=${`There is no view ${name}`} text="It is not of this app, or this token may not read it." action=${back} />`;
  }
  return html`<${Detail} key=${name} view=${view} views=${told.views} problem=${problem} part=${part} rowKey=${rest.join("/")} query=${query} go=${go} api=${api} />`;
}

const verdictState = (view) => (view.verified ? VERDICTS[view.verified.verdict]?.state : "");

const COLUMNS = [
  { id: "view", title: "View", value: (one) => one.view, show: (one) => html`<a href=${link(one.view)}>${one.view}</a>${one.answered_by !== one.view ? html` <small>now ${one.answered_by}</small>` : ""}` },
  { id: "state", title: "State", width: 130, value: (one) => one.state, show: (one) => html`<${State} state=${one.state} kind=${stateOf(one)} title=${one.why} />` },
  { id: "rows", title: "Rows", align: "right", width: 110, value: (one) => one.rows, show: (one) => exactly(one.rows) },
  { id: "lag", title: "Lag", align: "right", width: 120, value: (one) => one.behind_records, show: (one) => lagText(one), about: "Records that its topic has and the store does not have yet" },
  { id: "position", title: "Position", phone: false, value: (one) => placeText(one.position, 1), show: (one) => html`<span title=${placeText(one.position)}>${placeText(one.position, 1)}</span>` },
  { id: "store", title: "Store", width: 130, phone: false, value: (one) => storeText(one.store) },
  { id: "topic", title: "Topic", phone: false, value: (one) => one.topic, show: (one) => html`<a href=${`#/topics/${encodeURIComponent(one.topic)}`}>${one.topic}</a>` },
  { id: "dead", title: "Dead", align: "right", width: 80, phone: false, value: (one) => one.dead, show: (one) => (one.dead ? html`<a class="view-bad" href="#/dead">${count(one.dead)}</a>` : count(one.dead)) },
  { id: "verified", title: "Last verified", width: 190, phone: false, value: (one) => one.verified?.began_ms ?? 0, show: (one) => html`<${Verified} view=${one} />` },
];

/** Of a view that is computed on read nothing is kept that could be behind. Short, for a column: "0", "412 · 3 s". */
function lagText(one) {
  if (one.store === "onread") return "0";
  if (!one.behind_records) return count(one.behind_records);
  return `${count(one.behind_records)}${one.behind_seconds === null ? "" : ` · ${duration(one.behind_seconds)}`}`;
}

function Verified({ view }) {
  if (view.store === "onread") return html`<span class="quiet" title="Nothing of it is kept that could be wrong">–</span>`;
  if (!view.verified) return html`<a class="quiet" href=${link(view.view, "verify")}>never</a>`;
  const { verdict, began_ms, line } = view.verified;
  return html`<a class=${`view-verdict-short ${verdictState(view)}`} href=${link(view.view, "verify")} title=${line}>${VERDICTS[verdict]?.short ?? verdict}</a> <small>${ago(began_ms)}</small>`;
}

function List({ told, problem, go }) {
  const nothing = html`<${Empty} title="This app has no views" text="A view keeps the rows of a topic in a store, to be asked." action=${html`<code>app.view("name", topic)</code>`} />`;
  return html`
    <div class="views-list" data-test="views">
      <header class="page-head"><h1>Views</h1><span class="quiet">Rows of topics, kept in stores to be asked.</span></header>
      ${problem ? html`<${ProblemBox} problem=${problem} />` : ""}
      ${told.views.length === 0 ? nothing
        : html`<${Panel}><${Table} columns=${COLUMNS} rows=${told.views} rowKey=${(one) => one.view} onOpen=${(one) => go("views", [one.view])} find=${told.views.length > 8} label="Views" /><//>`}
      <p class="view-note" data-test="sql-note">
        ${told.sql
          ? html`Questions across views: <a href="#/sql">SQL</a>.`
          : html`This server does not answer SQL: <code>pip install "headrace[sql]"</code> where it runs, and start it again. Views are read as ever.`}
      </p>
    </div>`;
}

function Detail({ view, views, problem, part, rowKey, query, go, api }) {
  const { told, trouble } = useColumns(view, api);
  const current = PARTS.includes(part) ? part : "rows";
  const isRow = part === "row";
  const ask = (next) => go("views", isRow ? [view.view, "row", rowKey] : [view.view], next, { replace: true });
  const verdict = view.verified && VERDICTS[view.verified.verdict];
  return html`
    <div class="view-detail" data-test="view">
      <header class="page-head">
        <h1><a href="#/views" class="crumb">Views</a> ${view.view}</h1>
        <${State} state=${view.state} kind=${stateOf(view)} title=${view.why} />
        <nav class="page-aside view-links" aria-label="Where it comes from">
          <a href=${`#/graph?node=${encodeURIComponent(`view:${view.answered_by}`)}`}>Graph</a>
          <a href=${`#/topics/${encodeURIComponent(view.topic)}`}>Topic ${view.topic}</a>
          ${view.written_by ? html`<a href=${`#/flows/${encodeURIComponent(view.written_by)}`}>Flow ${view.written_by}</a>` : ""}
          <a href=${`#/sql?sql=${encodeURIComponent(`SELECT * FROM ${/^[a-z_][a-z0-9_]*$/.test(view.view) ? view.view : `"${view.view.replaceAll('"', '""')}"`} LIMIT 100`)}`}>SQL</a>
        </nav>
      </header>
      ${view.why ? html`<p class=${`view-why ${stateOf(view)}`}>${view.why}</p>` : ""}
      ${problem || trouble ? html`<${ProblemBox} problem=${problem ?? trouble} />` : ""}
      <div class="stats">
        <${Stat} label="Rows" value=${exactly(view.rows)} />
        <${Stat} label="Store" value=${storeText(view.store)} />
        <${Stat} label="Position" value=${view.position?.generation ? `batch ${exactly(view.position.batch)}` : placeText(view.position, 1)} note=${view.position?.generation ? `of generation ${view.position.generation}` : ""} title=${placeText(view.position)} />
        <${Stat} label="Lag" value=${behindText(view)} state=${view.behind_records ? "warn" : ""} />
        <${Stat} label="Dead letters" value=${view.dead === null ? "–" : count(view.dead)} state=${view.dead ? "bad" : ""} />
        <${Stat} label="Last verified" value=${verdict ? `${verdict.short}, ${ago(view.verified.began_ms)}` : "never"} state=${verdict?.state ?? ""} title=${view.verified?.line} />
      </div>
      <${Tabs} label="Of this view" current=${current} tabs=${[
        { id: "rows", title: "Rows", href: link(view.view) },
        { id: "position", title: "Position", href: link(view.view, "position") },
        { id: "verify", title: "Verify", href: link(view.view, "verify") },
      ]} />
      ${current === "position" ? html`<${Place} view=${view} views=${views} />` : ""}
      ${current === "verify" ? html`<${Proof} view=${view} api=${api} />` : ""}
      ${current === "rows" && told
        ? html`<div class=${isRow ? "view-split" : ""}>
            <${Rows} told=${told} total=${view.rows} query=${query} api=${api} selected=${isRow ? rowKey : undefined} onAsk=${ask}
              onOpen=${(key) => go("views", [view.view, "row", key], query)} />
            ${isRow ? html`<${Row} told=${told} rowKey=${rowKey} api=${api} onClose=${() => go("views", [view.view], query)} />` : ""}
          </div>`
        : ""}
      ${current === "rows" && !told && !trouble ? html`<p class="view-note">${view.state === "serving" ? "Asking…" : "There are no rows to show yet."}</p>` : ""}
    </div>`;
}

/** The view with its columns; asked again when another view answers to the name, or when it begins to serve. */
function useColumns(view, api) {
  const [found, setFound] = useState({ told: null, trouble: null });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    if (!found.trouble || (found.trouble.status >= 400 && found.trouble.status < 500)) return undefined;
    const timer = setTimeout(() => setTurn(turn + 1), AGAIN_MS);
    return () => clearTimeout(timer);
  }, [found.trouble]);
  useEffect(() => {
    const over = new AbortController();
    api.get(`/v1/views/${encodeURIComponent(view.view)}`, {}, { signal: over.signal }).then(
      (told) => setFound({ told: told.columns.length ? told : null, trouble: null }),
      (trouble) => over.signal.aborted || setFound({ told: null, trouble }),
    );
    return () => over.abort();
  }, [view.view, view.answered_by, view.state, view.position?.generation ?? 0, turn]);
  return found;
}

export default { id: "views", title: "Views", key: "v", icon, View };
