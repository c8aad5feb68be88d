// A table of any length: only the rows in sight are there. Sorted by its heads, found in by words, walked by keys.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "/page/vendor/ui.js";

const ROW_PX = 34;
const AROUND = 12;
const NATURAL_MAX = 200;
const FLASH_MS = 5_000;

const valueOf = (column, row) => (column.value ? column.value(row) : row[column.id]);

function compare(a, b) {
  // What is not known comes last in either order.
  const none = (one) => one === null || one === undefined || one === "" || Number.isNaN(one);
  if (none(a) || none(b)) return none(a) - none(b) || 0;
  if (typeof a === "string" || typeof b === "string") return String(a).localeCompare(String(b), "en", { numeric: true, sensitivity: "base" });
  return a < b ? -1 : a > b ? 1 : 0;
}

function sorted(rows, columns, order) {
  const column = order && columns.find((one) => one.id === order.id);
  if (!column) return rows;
  const none = (one) => one === null || one === undefined || one === "";
  const keyed = rows.map((row, at) => [valueOf(column, row), at, row]);
  keyed.sort(([a, at], [b, bt]) => (none(a) || none(b) ? compare(a, b) : compare(a, b) * (order.down ? -1 : 1)) || at - bt);
  return keyed.map(([, , row]) => row);
}

function matching(rows, columns, words) {
  const wanted = words.trim().toLowerCase().split(/\s+/).filter(Boolean);
  if (wanted.length === 0) return rows;
  return rows.filter((row) => {
    const text = columns.map((one) => valueOf(one, row) ?? "").join(" ").toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
}

/**
 * Which rows have other values than a moment ago, by their keys: how often, so that each change is seen, and when, so that an old
 * one is not seen again by whoever scrolls.
 */
function useChanges(rows, columns, keyOf, wanted) {
  const before = useRef(new Map());
  const turns = useRef(new Map());
  return useMemo(() => {
    if (!wanted) return turns.current;
    const seen = new Map();
    for (const row of rows) {
      const key = keyOf(row);
      const text = columns.map((one) => String(valueOf(one, row))).join("\u0000");
      seen.set(key, text);
      const old = before.current.get(key);
      if (before.current.size > 0 && old !== text) turns.current.set(key, { turn: (turns.current.get(key)?.turn ?? 0) + 1, at: performance.now() });
    }
    for (const key of turns.current.keys()) if (!seen.has(key)) turns.current.delete(key);
    before.current = seen;
    return new Map(turns.current);
  }, [rows, wanted]);
}

/**
 * `columns`: [{id, title, value(row), show(row), align: "right", sort: true, width, phone: false, about}]; `phone: false` leaves
 * a column out on narrow screens. `order`: {id, down} at first. `wrap`: rows as high as they are, for short tables.
 */
export function Table({ columns, rows, rowKey, onOpen, empty = "There is nothing here.", find = false, flash = false, order = null, wrap = false, label = "", selected }) {
  const keyOf = rowKey ?? ((row) => row.id ?? row.name);
  const box = useRef(null);
  const [words, setWords] = useState("");
  const [by, setBy] = useState(order);
  const [active, setActive] = useState(0);
  const [view, setView] = useState({ top: 0, height: 600 });
  const shown = useMemo(() => sorted(matching(rows, columns, words), columns, by), [rows, columns, words, by]);
  const changes = useChanges(rows, columns, keyOf, flash);
  const focusing = useRef(false);

  const natural = wrap && shown.length <= NATURAL_MAX;
  const first = natural ? 0 : Math.max(0, Math.floor(view.top / ROW_PX) - AROUND);
  const last = natural ? shown.length : Math.min(shown.length, Math.ceil((view.top + view.height) / ROW_PX) + AROUND);
  const at = Math.min(active, Math.max(0, shown.length - 1));

  // Also where the wheel has left the row that keys were at.
  const wayIn = at >= first && at < last ? at : first;

  useEffect(() => {
    const measured = () => box.current && setView({ top: box.current.scrollTop, height: box.current.clientHeight });
    measured();
    const watch = new ResizeObserver(measured);
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (!focusing.current) return;
    focusing.current = false;
    box.current.querySelector(`tr[data-at="${at}"]`)?.focus({ preventScroll: true });
  });

  const moveTo = (next) => {
    const to = Math.max(0, Math.min(shown.length - 1, next));
    setActive(to);
    focusing.current = true;
    if (natural) {
      box.current.querySelector(`tr[data-at="${to}"]`)?.scrollIntoView({ block: "nearest" });
      return;
    }
    const { scrollTop, clientHeight } = box.current;
    const head = box.current.querySelector("thead").offsetHeight;
    if (to * ROW_PX < scrollTop) box.current.scrollTop = to * ROW_PX;
    else if ((to + 1) * ROW_PX + head > scrollTop + clientHeight) box.current.scrollTop = (to + 1) * ROW_PX + head - clientHeight;
    setView({ top: box.current.scrollTop, height: clientHeight });
  };
  const pressed = (event) => {
    if (event.target.tagName !== "TR") return;
    // Rows may have moved below the focus, which stays with its row.
    const at = Number(event.target.dataset.at);
    const page = Math.max(1, Math.floor(view.height / ROW_PX) - 2);
    const steps = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: shown.length - 1 };
    if (event.key in steps) {
      event.preventDefault();
      moveTo(steps[event.key]);
    } else if ((event.key === "Enter" || event.key === " ") && onOpen && shown[at]) {
      event.preventDefault();
      onOpen(shown[at]);
    }
  };
  const clicked = (event, row, index) => {
    setActive(index);
    // A link or button inside the row is its own.
    if (onOpen && !event.target.closest("a, button, input, select, label") && getSelection().isCollapsed) onOpen(row);
  };
  const sortBy = (column) => setBy((old) => (old?.id !== column.id ? { id: column.id, down: column.align === "right" } : { id: column.id, down: !old.down }));

  const side = (column) => `${column.align === "right" ? "right" : ""} ${column.phone === false ? "wide-cell" : ""}`;
  const foundNone = rows.length > 0 && shown.length === 0;
  return html`<div class="table">
    ${find && html`<div class="table-find">
      <input type="search" data-find data-test="find" aria-label=${`Find in ${label || "this table"}`} placeholder="Find  ( / )" value=${words} onInput=${(event) => (setWords(event.target.value), setActive(0))} />
      <span class="quiet" data-test="found">${words ? `${shown.length} of ${rows.length}` : rows.length > 0 ? rows.length : ""}</span>
    </div>`}
    <div class="table-box" ref=${box} onScroll=${() => setView({ top: box.current.scrollTop, height: box.current.clientHeight })} onKeyDown=${pressed}>
      <table class=${natural ? "natural" : "fixed"} aria-rowcount=${shown.length + 1} aria-label=${label || undefined}>
        <colgroup>${columns.map((one) => html`<col key=${one.id} class=${one.phone === false ? "wide-cell" : ""} style=${one.width ? { width: typeof one.width === "number" ? `${one.width}px` : one.width } : undefined} />`)}</colgroup>
        <thead><tr aria-rowindex="1">${columns.map((one) => html`<th key=${one.id} scope="col" class=${side(one)} title=${one.about} aria-sort=${by?.id === one.id ? (by.down ? "descending" : "ascending") : undefined}>
          ${one.sort === false || !one.title ? one.title : html`<button type="button" class="sort" onClick=${() => sortBy(one)}>${one.title}<span class="sort-mark" aria-hidden="true">${by?.id === one.id ? (by.down ? "▾" : "▴") : ""}</span></button>`}
        </th>`)}</tr></thead>
        <tbody>
          ${first > 0 && html`<tr key="above" aria-hidden="true" class="spacer" style=${{ height: `${first * ROW_PX}px` }}><td colspan=${columns.length}></td></tr>`}
          ${shown.slice(first, last).map((row, offset) => {
            const index = first + offset;
            const key = keyOf(row);
            const change = flash ? changes.get(key) : undefined;
            return html`<tr key=${String(key)} data-at=${index} data-key=${String(key)} aria-rowindex=${index + 2} tabindex=${index === wayIn ? 0 : -1} aria-selected=${selected !== undefined && selected === key ? "true" : undefined}
              class=${`${onOpen ? "opens" : ""} ${change && performance.now() - change.at < FLASH_MS ? `flash-${change.turn % 2}` : ""}`} onClick=${(event) => clicked(event, row, index)} onFocus=${() => index !== at && setActive(index)}>
              ${columns.map((one) => html`<td key=${one.id} class=${side(one)}>${one.show ? one.show(row) : (valueOf(one, row) ?? "–")}</td>`)}
            </tr>`;
          })}
          ${last < shown.length && html`<tr key="below" aria-hidden="true" class="spacer" style=${{ height: `${(shown.length - last) * ROW_PX}px` }}><td colspan=${columns.length}></td></tr>`}
        </tbody>
      </table>
      ${shown.length === 0 && html`<div class="table-empty" data-test="empty">${foundNone ? `Nothing here has "${words}" in it.` : empty}</div>`}
    </div>
  </div>`;
}
