// Shows the rows of a view: page by page from the server, or live.

import { Button, Panel, ProblemBox } from "/page/parts/box.js";
import { ago, exactly } from "/page/parts/numbers.js";
import { Table } from "/page/parts/table.js";
import { html, useEffect, useMemo, useRef, useState } from "/page/vendor/ui.js";
import { useLive } from "./live.js";
import { isFiltered, Search } from "./search.js";
import { positionText } from "./status.js";
import { cell, isComparable, isNumeric, keyText, kindText, quotedName, sortParts, textOf } from "./values.js";

const PAGE_ROWS = 200;
const ROWS_MAX = 10_000;

/** ``schema`` is the view with its columns. ``total`` is its number of rows, if known. */
export function Rows({ schema, total, query, api, selected, onSearch, onOpen }) {
  const { filter, prefix, from, to, match, sort } = query;
  const isLive = query.live === "1" && !match;
  const live = useLive(isLive ? schema : null, { filter, prefix, from, to }, sort);
  const paged = usePages(api, schema, isLive ? null : { filter, prefix, from, to, match, sort });
  const shown = isLive ? live.rows : paged.rows;
  const problem = isLive ? live.problem : paged.problem;
  const columns = useMemo(() => schema.columns.map((column) => ({
    id: column.name,
    title: html`<${Head} column=${column} sort=${match ? null : sort} onSort=${(next) => onSearch({ ...query, sort: next })} />`,
    sort: false,
    about: `${kindText(column.kind)}${column.optional ? ", or null" : ""}${column.key ? "; part of the key" : ""}`,
    align: isNumeric(column.kind) ? "right" : undefined,
    value: (row) => textOf(row[column.name]),
    show: (row) => cell(row[column.name], column.kind),
  })), [JSON.stringify(schema.columns), JSON.stringify(query)]);
  const rowKey = (row) => keyText(schema.key, row);
  return html`
    <div class="view-rows">
      <${Search} schema=${schema} query=${query} onSearch=${onSearch} />
      ${problem ? html`<${ProblemBox} problem=${problem} />` : ""}
      <div class="view-status">
        ${isLive ? html`<${LiveLine} live=${live} />` : html`<${PageLine} paged=${paged} total=${isFiltered(query) ? null : total} />`}
      </div>
      ${shown === null
        ? problem ? "" : html`<p class="view-note">Loading the rows…</p>`
        : html`<${Panel} data-test="rows"><${Table} columns=${columns} rows=${shown} rowKey=${rowKey} onOpen=${(row) => onOpen(rowKey(row))}
            flash=${isLive} label=${`rows of ${schema.view}`} selected=${selected}
            empty=${isFiltered(query) ? "No row matches this search." : "This view has no rows yet."} /><//>`}
      ${!isLive && paged.next
        ? html`<div class="view-more">
            ${shown.length >= ROWS_MAX
              ? html`<span>These are the first ${exactly(ROWS_MAX)} rows. Narrow the search, or use SQL.</span>`
              : html`<${Button} onClick=${paged.more} busy=${paged.busy} data-test="more">Next ${PAGE_ROWS}<//>
                     <${Button} kind="plain" onClick=${paged.all} busy=${paged.busy} data-test="all">Load all<//>`}
          </div>`
        : ""}
    </div>`;
}

/** Each click changes the order, which the server applies to all rows: ascending, descending, then by key. */
function Head({ column, sort, onSort }) {
  if (sort === null || !isComparable(column.kind)) return column.name;
  const [by] = sortParts(sort);
  const ownOrder = by?.name === column.name ? by : null;
  const name = quotedName(column.name);
  const next = !ownOrder ? name : ownOrder.down ? "" : `-${name}`;
  const words = ownOrder ? (ownOrder.down ? "sorted descending" : "sorted ascending") : "sort";
  return html`<button type="button" class="sort" title=${words} data-sort=${column.name} onClick=${() => onSort(next)}>
    ${column.name}${column.key ? html`<span class="view-key-mark" title="part of the key">key</span>` : ""}<span class="sort-mark" aria-hidden="true">${ownOrder ? (ownOrder.down ? "▾" : "▴") : ""}</span></button>`;
}

function PageLine({ paged, total }) {
  if (paged.rows === null) return html`<span>${paged.busy ? "loading…" : ""}</span>`;
  const rows = paged.rows.length;
  const all = paged.next ? (total !== null && total !== undefined && total >= rows ? ` of ${exactly(total)}` : ", more available") : ", complete";
  return html`
    <span data-test="page-line"><b>${exactly(rows)}</b> row${rows === 1 ? "" : "s"}${all}</span>
    <span>at ${positionText(paged.position)}</span>
    ${paged.moved ? html`<span class="view-moved">the view changed between two pages <button type="button" class="view-link" onClick=${paged.restart}>start again</button></span>`
      : html`<button type="button" class="view-link" onClick=${paged.restart} data-test="again">Refresh</button>`}`;
}

const LIVE_WORDS = { connecting: "connecting…", live: "live", offline: "no response, retrying", ended: "not live" };

function LiveLine({ live }) {
  const kind = live.state === "live" ? "good" : live.state === "ended" ? "bad" : "warn";
  return html`
    <span class=${`view-live-state ${kind}`} data-test="live-state">${LIVE_WORDS[live.state]}</span>
    ${live.rows ? html`<span><b>${exactly(live.rows.length)}</b> row${live.rows.length === 1 ? "" : "s"}</span>` : ""}
    ${live.position ? html`<span data-test="live-position">at ${positionText(live.position)}</span>` : ""}
    ${live.at ? html`<span>${exactly(live.changed)} changed, ${exactly(live.gone)} deleted; last ${ago(live.at)}</span>` : live.rows ? html`<span>no changes yet</span>` : ""}`;
}

/** Load a result page by page. A row that appears in two pages is shown once. */
function usePages(api, schema, search) {
  const empty = { rows: null, next: null, position: null, moved: false, problem: null, busy: false };
  const [pages, setPages] = useState(empty);
  const [attempt, setAttempt] = useState(0);
  const controller = useRef(null);
  const searchKey = search && JSON.stringify(search);
  const load = async (until, signal, before) => {
    const byKey = new Map((before?.rows ?? []).map((row) => [keyText(schema.key, row), row]));
    let next = before?.next ?? null;
    setPages((last) => ({ ...last, busy: true, problem: null }));
    try {
      do {
        const limit = Math.min(1_000, Math.max(PAGE_ROWS, until - byKey.size));
        const path = `/v1/views/${encodeURIComponent(schema.view)}/rows`;
        const page = next
          ? await api.get(next, { limit: undefined }, { signal, exact: true })
          : await api.get(path, { ...JSON.parse(searchKey), limit }, { signal, exact: true });
        for (const row of page.rows) byKey.set(keyText(schema.key, row), row);
        next = page.next ?? null;
        setPages((last) => ({ ...last, rows: [...byKey.values()], next, position: page.position, moved: page.moved, busy: Boolean(next) && byKey.size < until }));
      } while (next && byKey.size < until);
    } catch (problem) {
      if (signal.aborted) return;
      setPages((last) => ({ ...last, rows: before ? last.rows : null, problem, busy: false }));
    }
  };
  useEffect(() => {
    if (searchKey === null) return setPages(empty);
    controller.current = new AbortController();
    load(PAGE_ROWS, controller.current.signal, null);
    return () => controller.current.abort();
  }, [schema.view, schema.answered_by, searchKey, attempt]);
  return {
    ...pages,
    more: () => load(pages.rows.length + PAGE_ROWS, controller.current.signal, pages),
    all: () => load(ROWS_MAX, controller.current.signal, pages),
    restart: () => setAttempt(attempt + 1),
  };
}
