// The section for SQL over views: a statement, its rows, and a chart. A link fills in a statement but never runs it.

import { Button, Copy, Empty, Panel, ProblemBox, Tabs } from "/page/parts/box.js";
import { ago, duration, exactly } from "/page/parts/numbers.js";
import { Table } from "/page/parts/table.js";
import { html, useEffect, useMemo, useRef, useState } from "/page/vendor/ui.js";
import { useFetched } from "/page/requests.js";
import { Catalogue } from "./sql/catalogue.js";
import { asCsv, asJson, save } from "./sql/download.js";
import { forget, history, remember } from "./sql/history.js";
import { isNumberType, isTimeType, quoted } from "./sql/names.js";
import { Plot } from "./sql/plot.js";
import { positionText } from "./views/status.js";
import { cell, textOf } from "./views/values.js";

const LINK_CHARS_MAX = 4_000;
const icon = html`<svg viewBox="0 0 16 16" width="16" height="16" fill="none" stroke="currentColor" stroke-width="1.4" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><path d="M2.5 4l3.5 4-3.5 4M8 12.5h5.5" /></svg>`;

/** The last statement and result. They are shown again when the section is reopened. */
const last = { text: null, answer: null };

function View({ query, go, api }) {
  const [status, error] = useFetched(api, "/v1/standings");
  if (status === null) return error ? html`<${ProblemBox} problem=${error} />` : html`<p class="sql-note">Loading the views for SQL…</p>`;
  if (!status.sql)
    return html`<div data-test="no-sql"><${Empty} title="This server does not run SQL" text="The libraries for SQL are not installed. You can still read views."
      action=${html`<code>pip install "headrace[sql]"</code> <a class="button" href="#/views">Views</a>`} /></div>`;
  return html`<${Desk} views=${status.views} query=${query} go=${go} api=${api} />`;
}

function exampleStatement(views) {
  const view = views.find((view) => view.state === "serving" && view.store !== "onread");
  return view ? `SELECT *\nFROM ${quoted(view.view)}\nLIMIT 100` : "SELECT 1";
}

function Desk({ views, query, go, api }) {
  const [text, setText] = useState(() => query.sql ?? last.text ?? exampleStatement(views));
  const [answer, setAnswer] = useState(() => (query.sql === undefined || query.sql.trim() === last.answer?.sql ? last.answer : null));
  const [problem, setProblem] = useState(null);
  const [running, setRunning] = useState(null);
  const [entries, setEntries] = useState(history);
  const editor = useRef(null);
  last.text = text;
  last.answer = answer;
  useEffect(() => {
    if (query.sql !== undefined && query.sql !== editor.current.value) {
      running?.abort();
      setText(query.sql);
      setAnswer(null);
      setProblem(null);
    }
  }, [query.sql]);
  useEffect(() => () => running?.abort(), [running]);

  const run = async () => {
    const sql = text.trim();
    if (!sql || running) return;
    const controller = new AbortController();
    setRunning(controller);
    setProblem(null);
    setEntries(remember(sql));
    go("sql", [], sql.length <= LINK_CHARS_MAX ? { sql: text } : {}, { replace: true });
    const began = performance.now();
    try {
      const result = await api.post("/v1/sql", { sql }, { signal: controller.signal, exact: true });
      setAnswer({ ...result, sql, seconds: (performance.now() - began) / 1_000 });
    } catch (error) {
      if (controller.signal.aborted) setProblem({ title: "Stopped", detail: "The statement was cancelled." });
      else setProblem(error);
      setAnswer(null);
    } finally {
      setRunning(null);
    }
  };
  const pressed = (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    run();
  };
  const insert = (name) => {
    const box = editor.current;
    const before = box.value.slice(0, box.selectionStart);
    const space = before && !/[\s(,.]$/.test(before) ? " " : "";
    box.setRangeText(`${space}${name}`, box.selectionStart, box.selectionEnd, "end");
    setText(box.value);
    box.focus();
  };
  return html`
    <header class="page-head"><h1>SQL</h1><span class="quiet">Query views of all stores. Each view is read at one position.</span></header>
    <div class="sql-desk">
      <${Catalogue} views=${views} api=${api} onInsert=${insert} />
      <div class="sql-work">
        <div class="sql-editor">
          <label class="unseen" for="sql-text">Statement</label>
          <textarea id="sql-text" ref=${editor} spellcheck="false" autocapitalize="off" autocomplete="off" rows=${Math.min(16, Math.max(4, text.split("\n").length + 1))}
            value=${text} onInput=${(event) => setText(event.target.value)} onKeyDown=${pressed} data-test="sql-text" aria-describedby="sql-keys"></textarea>
          <div class="sql-bar">
            <${Button} kind="primary" onClick=${run} busy=${running !== null} disabled=${!text.trim()} data-test="run">Run<//>
            ${running ? html`<${Button} kind="plain" onClick=${() => running.abort()} data-test="stop">Stop<//>` : ""}
            <span id="sql-keys" class="sql-note">Ctrl+Enter runs the statement: one SELECT in DuckDB's SQL, read-only.</span>
            <span class="view-space"></span>
            <${History} entries=${entries} onSelect=${(sql) => (setText(sql), editor.current.focus())} onForget=${() => setEntries(forget())} />
            <${Copy} text=${`${location.origin}${location.pathname}#/sql?${new URLSearchParams({ sql: text })}`} label="Copy a link to this statement" />
          </div>
        </div>
        ${problem ? html`<${ProblemBox} problem=${problem} />` : ""}
        ${answer ? html`<${Answer} answer=${answer} />`
          : !problem && !running ? html`<p class="sql-note" data-test="not-run">A statement from a link runs only when you click Run.</p>` : ""}
      </div>
    </div>`;
}

function History({ entries, onSelect, onForget }) {
  const box = useRef(null);
  const select = (sql) => (box.current.removeAttribute("open"), onSelect(sql));
  return html`
    <details class="sql-history" ref=${box} data-test="history">
      <summary>History <small>${entries.length}</small></summary>
      <div class="sql-history-list">
        ${entries.length === 0 ? html`<p class="sql-note">No statements yet. The history is stored only in this browser.</p>` : ""}
        ${entries.map((entry) => html`<button type="button" key=${entry.sql} onClick=${() => select(entry.sql)} title=${entry.sql.slice(0, 1_000)}><code>${entry.sql.replace(/\s+/g, " ").slice(0, 160)}</code> <small>${ago(entry.at_ms)}</small></button>`)}
        ${entries.length ? html`<${Button} kind="plain" onClick=${onForget}>Delete all<//>` : ""}
      </div>
    </details>`;
}

function Answer({ answer }) {
  const [shown, setShown] = useState("table");
  const { columns, rows, positions, seconds } = answer;
  const numbered = useMemo(() => rows.map((values, at) => ({ at, values })), [answer]);
  const tableColumns = useMemo(() => columns.map((column, at) => ({
    id: String(at),
    title: column.name || `column ${at + 1}`,
    about: column.type,
    align: isNumberType(column.type) ? "right" : undefined,
    value: (row) => (typeof row.values[at] === "object" && row.values[at] !== null ? textOf(row.values[at]) : row.values[at]),
    show: (row) => cell(row.values[at], isTimeType(column.type) ? "time" : ""),
  })), [answer]);
  const rowCount = `${exactly(rows.length)} row${rows.length === 1 ? "" : "s"}`;
  return html`
    <div class="sql-answer" data-test="answer">
      <div class="sql-answer-head">
        <${Tabs} label="Answer" current=${shown} onChange=${setShown} tabs=${[{ id: "table", title: "Table" }, { id: "chart", title: "Chart" }]} />
        <span data-test="answer-line"><b>${rowCount}</b> in ${duration(seconds)}</span>
        <span class="view-space"></span>
        <${Button} kind="plain" onClick=${() => save(asCsv(answer), "answer.csv", "text/csv")} data-test="csv" title="Download. Texts that a spreadsheet would treat as formulas are prefixed with an apostrophe">CSV<//>
        <${Button} kind="plain" onClick=${() => save(asJson(answer), "answer.json", "application/json")} data-test="json" title="Download">JSON<//>
      </div>
      ${shown === "table" ? html`<${Panel} data-test="sql-rows"><${Table} columns=${tableColumns} rows=${numbered} rowKey=${(row) => row.at} label="Answer" empty="No matching rows." /><//>` : html`<${Panel}><${Plot} answer=${answer} /><//>`}
      <p class="sql-positions" data-test="positions">
        ${Object.keys(positions).length === 0 ? "No view was read." : "As of: "}
        ${Object.entries(positions).map(([view, position]) => html`<span key=${view}><a href=${`#/views/${encodeURIComponent(view)}/position`}>${view}</a> at ${positionText(position)}</span>`)}
      </p>
    </div>`;
}

export default { id: "sql", title: "SQL", key: "q", icon, View };
