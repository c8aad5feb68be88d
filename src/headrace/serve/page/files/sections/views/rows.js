// The rows of a view: found by the server, a page at a time, or live.

import { Button, Panel, ProblemBox } from "/page/parts/box.js";
import { ago, exactly } from "/page/parts/numbers.js";
import { Table } from "/page/parts/table.js";
import { html, useEffect, useMemo, useRef, useState } from "/page/vendor/ui.js";
import { useLive } from "./live.js";
import { isAsked, Search } from "./search.js";
import { placeText } from "./standings.js";
import { cell, isComparable, isNumeric, keyText, kindText, quotedName, sortParts, textOf } from "./values.js";

const PAGE_ROWS = 200;
const KEPT_ROWS_MAX = 10_000;

/** ``told`` is the view with its columns, ``total`` how many rows it has, where that is known. */
export function Rows({ told, total, query, api, selected, onAsk, onOpen }) {
  const { filter, prefix, from, to, match, sort } = query;
  const isLive = query.live === "1" && !match;
  const live = useLive(isLive ? told : null, { filter, prefix, from, to }, sort);
  const paged = usePages(api, told, isLive ? null : { filter, prefix, from, to, match, sort });
  const shown = isLive ? live.rows : paged.rows;
  const problem = isLive ? live.problem : paged.problem;
  const columns = useMemo(() => told.columns.map((one) => ({
    id: one.name,
    title: html`<${Head} column=${one} sort=${match ? null : sort} onSort=${(next) => onAsk({ ...query, sort: next })} />`,
    sort: false,
    about: `${kindText(one.kind)}${one.optional ? ", or null" : ""}${one.key ? "; of the key" : ""}`,
    align: isNumeric(one.kind) ? "right" : undefined,
    value: (row) => textOf(row[one.name]),
    show: (row) => cell(row[one.name], one.kind),
  })), [JSON.stringify(told.columns), JSON.stringify(query)]);
  const rowKey = (row) => keyText(told.key, row);
  return html`
    <div class="view-rows">
      <${Search} told=${told} query=${query} onAsk=${onAsk} />
      ${problem ? html`<${ProblemBox} problem=${problem} />` : ""}
      <div class="view-status">
        ${isLive ? html`<${LiveLine} live=${live} />` : html`<${PageLine} paged=${paged} total=${isAsked(query) ? null : total} />`}
      </div>
      ${shown === null
        ? problem ? "" : html`<p class="view-note">Asking…</p>`
        : html`<${Panel} data-test="rows"><${Table} columns=${columns} rows=${shown} rowKey=${rowKey} onOpen=${(row) => onOpen(rowKey(row))}
            flash=${isLive} label=${`rows of ${told.view}`} selected=${selected}
            empty=${isAsked(query) ? "No row fits this search." : "This view has no rows yet."} /><//>`}
      ${!isLive && paged.next
        ? html`<div class="view-more">
            ${shown.length >= KEPT_ROWS_MAX
              ? html`<span>These are the first ${exactly(KEPT_ROWS_MAX)} rows. Narrow the search for others, or ask with SQL.</span>`
              : html`<${Button} onClick=${paged.more} busy=${paged.busy} data-test="more">Next ${PAGE_ROWS}<//>
                     <${Button} kind="plain" onClick=${paged.all} busy=${paged.busy} data-test="all">All of them<//>`}
          </div>`
        : ""}
    </div>`;
}

/** Sorts by the server, which has all rows: up, down, and back to the order of the key. */
function Head({ column, sort, onSort }) {
  if (sort === null || !isComparable(column.kind)) return column.name;
  const [by] = sortParts(sort);
  const mine = by?.name === column.name ? by : null;
  const name = quotedName(column.name);
  const next = !mine ? name : mine.down ? "" : `-${name}`;
  const words = mine ? (mine.down ? "sorted downwards" : "sorted upwards") : "sort";
  return html`<button type="button" class="sort" title=${words} data-sort=${column.name} onClick=${() => onSort(next)}>
    ${column.name}${column.key ? html`<span class="view-key-mark" title="of the key">key</span>` : ""}<span class="sort-mark" aria-hidden="true">${mine ? (mine.down ? "▾" : "▴") : ""}</span></button>`;
}

function PageLine({ paged, total }) {
  if (paged.rows === null) return html`<span>${paged.busy ? "asking…" : ""}</span>`;
  const rows = paged.rows.length;
  const all = paged.next ? (total !== null && total !== undefined && total >= rows ? ` of ${exactly(total)}` : ", and there are more") : ", and that is all";
  return html`
    <span data-test="page-line"><b>${exactly(rows)}</b> row${rows === 1 ? "" : "s"}${all}</span>
    <span>at ${placeText(paged.position)}</span>
    ${paged.moved ? html`<span class="view-moved">the view moved on between two pages <button type="button" class="view-link" onClick=${paged.again}>begin again</button></span>`
      : html`<button type="button" class="view-link" onClick=${paged.again} data-test="again">Refresh</button>`}`;
}

const LIVE_WORDS = { connecting: "connecting…", live: "live", offline: "no answer, trying again", ended: "not live" };

function LiveLine({ live }) {
  const kind = live.state === "live" ? "good" : live.state === "ended" ? "bad" : "warn";
  return html`
    <span class=${`view-live-state ${kind}`} data-test="live-state">${LIVE_WORDS[live.state]}</span>
    ${live.rows ? html`<span><b>${exactly(live.rows.length)}</b> row${live.rows.length === 1 ? "" : "s"}</span>` : ""}
    ${live.position ? html`<span data-test="live-position">at ${placeText(live.position)}</span>` : ""}
    ${live.at ? html`<span>${exactly(live.changed)} changed, ${exactly(live.gone)} gone; last ${ago(live.at)}</span>` : live.rows ? html`<span>nothing has changed since</span>` : ""}`;
}

/** Pages of an answer, one after the other; a row that two of them have is shown once. */
function usePages(api, told, asked) {
  const empty = { rows: null, next: null, position: null, moved: false, problem: null, busy: false };
  const [found, setFound] = useState(empty);
  const [turn, setTurn] = useState(0);
  const over = useRef(null);
  const question = asked && JSON.stringify(asked);
  const load = async (until, signal, begun) => {
    const byKey = new Map((begun?.rows ?? []).map((row) => [keyText(told.key, row), row]));
    let next = begun?.next ?? null;
    setFound((last) => ({ ...last, busy: true, problem: null }));
    try {
      do {
        const limit = Math.min(1_000, Math.max(PAGE_ROWS, until - byKey.size));
        const path = `/v1/views/${encodeURIComponent(told.view)}/rows`;
        const page = next
          ? await api.get(next, { limit: undefined }, { signal, exact: true })
          : await api.get(path, { ...JSON.parse(question), limit }, { signal, exact: true });
        for (const row of page.rows) byKey.set(keyText(told.key, row), row);
        next = page.next ?? null;
        setFound((last) => ({ ...last, rows: [...byKey.values()], next, position: page.position, moved: page.moved, busy: Boolean(next) && byKey.size < until }));
      } while (next && byKey.size < until);
    } catch (problem) {
      if (signal.aborted) return;
      setFound((last) => ({ ...last, rows: begun ? last.rows : null, problem, busy: false }));
    }
  };
  useEffect(() => {
    if (question === null) return setFound(empty);
    over.current = new AbortController();
    load(PAGE_ROWS, over.current.signal, null);
    return () => over.current.abort();
  }, [told.view, told.answered_by, question, turn]);
  return {
    ...found,
    more: () => load(found.rows.length + PAGE_ROWS, over.current.signal, found),
    all: () => load(KEPT_ROWS_MAX, over.current.signal, found),
    again: () => setTurn(turn + 1),
  };
}
