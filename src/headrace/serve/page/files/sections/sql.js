// SQL over views: a statement, its rows, and a picture of them. A link brings a statement, and never runs it.

import { Button, Copy, Empty, Panel, ProblemBox, Tabs } from "/page/parts/box.js";
import { ago, duration, exactly } from "/page/parts/numbers.js";
import { Table } from "/page/parts/table.js";
import { html, useEffect, useMemo, useRef, useState } from "/page/vendor/ui.js";
import { useOnce } from "/page/asked.js";
import { Catalogue } from "./sql/catalogue.js";
import { asCsv, asJson, save } from "./sql/download.js";
import { forget, history, remember } from "./sql/history.js";
import { isNumberType, isTimeType, quoted } from "./sql/names.js";
import { Plot } from "./sql/plot.js";
import { placeText } from "./views/standings.js";
import { cell, textOf } from "./views/values.js";

const LINK_CHARS_MAX = 4_000;
const icon = html`<svg viewBox="0 0 16 16" width="16" height="16" fill="none" stroke="currentColor" stroke-width="1.4" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><path d="M2.5 4l3.5 4-3.5 4M8 12.5h5.5" /></svg>`;

/** What was written and answered last, for whoever comes back to the section. */
const kept = { text: null, answer: null };

function View({ query, go, api }) {
  const [standings, trouble] = useOnce(api, "/v1/standings");
  if (standings === null) return trouble ? html`<${ProblemBox} problem=${trouble} />` : html`<p class="sql-note">Asking…</p>`;
  if (!standings.sql)
    return html`<div data-test="no-sql"><${Empty} title="This server does not answer SQL" text="Its libraries are not installed. Views are read as ever."
      action=${html`<code>pip install "headrace[sql]"</code> <a class="button" href="#/views">Views</a>`} /></div>`;
  return html`<${Desk} views=${standings.views} query=${query} go=${go} api=${api} />`;
}

function firstOf(views) {
  const view = views.find((one) => one.state === "serving" && one.store !== "onread");
  return view ? `SELECT *\nFROM ${quoted(view.view)}\nLIMIT 100` : "SELECT 1";
}

function Desk({ views, query, go, api }) {
  const [text, setText] = useState(() => query.sql ?? kept.text ?? firstOf(views));
  const [answer, setAnswer] = useState(() => (query.sql === undefined || query.sql.trim() === kept.answer?.sql ? kept.answer : null));
  const [problem, setProblem] = useState(null);
  const [running, setRunning] = useState(null);
  const [told, setTold] = useState(history);
  const editor = useRef(null);
  kept.text = text;
  kept.answer = answer;
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
    const over = new AbortController();
    setRunning(over);
    setProblem(null);
    setTold(remember(sql));
    go("sql", [], sql.length <= LINK_CHARS_MAX ? { sql: text } : {}, { replace: true });
    const began = performance.now();
    try {
      const found = await api.post("/v1/sql", { sql }, { signal: over.signal, exact: true });
      setAnswer({ ...found, sql, seconds: (performance.now() - began) / 1_000 });
    } catch (trouble) {
      if (over.signal.aborted) setProblem({ title: "Stopped", detail: "Nobody waits for its answer any more." });
      else setProblem(trouble);
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
    <header class="page-head"><h1>SQL</h1><span class="quiet">Over views of any stores, each at one position.</span></header>
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
            <span id="sql-keys" class="sql-note">Ctrl+Enter. One SELECT, in DuckDB's SQL; nothing can be written.</span>
            <span class="view-space"></span>
            <${Before} told=${told} onTake=${(sql) => (setText(sql), editor.current.focus())} onForget=${() => setTold(forget())} />
            <${Copy} text=${`${location.origin}${location.pathname}#/sql?${new URLSearchParams({ sql: text })}`} label="Copy a link to this statement" />
          </div>
        </div>
        ${problem ? html`<${ProblemBox} problem=${problem} />` : ""}
        ${answer ? html`<${Answer} answer=${answer} />`
          : !problem && !running ? html`<p class="sql-note" data-test="not-run">It runs when you say so: a statement in a link is not run by itself.</p>` : ""}
      </div>
    </div>`;
}

function Before({ told, onTake, onForget }) {
  const box = useRef(null);
  const take = (sql) => (box.current.removeAttribute("open"), onTake(sql));
  return html`
    <details class="sql-history" ref=${box} data-test="history">
      <summary>History <small>${told.length}</small></summary>
      <div class="sql-history-list">
        ${told.length === 0 ? html`<p class="sql-note">Nothing yet. It is kept in this browser only.</p>` : ""}
        ${told.map((one) => html`<button type="button" key=${one.sql} onClick=${() => take(one.sql)} title=${one.sql.slice(0, 1_000)}><code>${one.sql.replace(/\s+/g, " ").slice(0, 160)}</code> <small>${ago(one.at_ms)}</small></button>`)}
        ${told.length ? html`<${Button} kind="plain" onClick=${onForget}>Forget all<//>` : ""}
      </div>
    </details>`;
}

function Answer({ answer }) {
  const [shown, setShown] = useState("table");
  const { columns, rows, positions, seconds } = answer;
  const numbered = useMemo(() => rows.map((values, at) => ({ at, values })), [answer]);
  const shape = useMemo(() => columns.map((one, at) => ({
    id: String(at),
    title: one.name || `column ${at + 1}`,
    about: one.type,
    align: isNumberType(one.type) ? "right" : undefined,
    value: (row) => (typeof row.values[at] === "object" && row.values[at] !== null ? textOf(row.values[at]) : row.values[at]),
    show: (row) => cell(row.values[at], isTimeType(one.type) ? "time" : ""),
  })), [answer]);
  const many = `${exactly(rows.length)} row${rows.length === 1 ? "" : "s"}`;
  return html`
    <div class="sql-answer" data-test="answer">
      <div class="sql-answer-head">
        <${Tabs} label="Answer" current=${shown} onChange=${setShown} tabs=${[{ id: "table", title: "Table" }, { id: "chart", title: "Chart" }]} />
        <span data-test="answer-line"><b>${many}</b> in ${duration(seconds)}</span>
        <span class="view-space"></span>
        <${Button} kind="plain" onClick=${() => save(asCsv(answer), "answer.csv", "text/csv")} data-test="csv" title="Download. A text that a spreadsheet would take for a formula gets an apostrophe in front">CSV<//>
        <${Button} kind="plain" onClick=${() => save(asJson(answer), "answer.json", "application/json")} data-test="json" title="Download">JSON<//>
      </div>
      ${shown === "table" ? html`<${Panel} data-test="sql-rows"><${Table} columns=${shape} rows=${numbered} rowKey=${(row) => row.at} label="Answer" empty="No row fits." /><//>` : html`<${Panel}><${Plot} answer=${answer} /><//>`}
      <p class="sql-positions" data-test="positions">
        ${Object.keys(positions).length === 0 ? "Of no view." : "As of: "}
        ${Object.entries(positions).map(([view, position]) => html`<span key=${view}><a href=${`#/views/${encodeURIComponent(view)}/position`}>${view}</a> at ${placeText(position)}</span>`)}
      </p>
    </div>`;
}

export default { id: "sql", title: "SQL", key: "q", icon, View };
