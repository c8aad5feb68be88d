// A table of any length, which renders only the visible rows. Users can sort, filter, and move with the keyboard.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "/page/vendor/ui.js";

const ROW_PX = 34;
const OVERSCAN = 12;
const NATURAL_MAX = 200;
const FLASH_MS = 5_000;

const valueOf = (column, row) => (column.value ? column.value(row) : row[column.id]);

function compare(a, b) {
  // Unknown values come last in both orders.
  const none = (value) => value === null || value === undefined || value === "" || Number.isNaN(value);
  if (none(a) || none(b)) return none(a) - none(b) || 0;
  if (typeof a === "string" || typeof b === "string") return String(a).localeCompare(String(b), "en", { numeric: true, sensitivity: "base" });
  return a < b ? -1 : a > b ? 1 : 0;
}

function sorted(rows, columns, order) {
  const column = order && columns.find((column) => column.id === order.id);
  if (!column) return rows;
  const none = (value) => value === null || value === undefined || value === "";
  const keyed = rows.map((row, at) => [valueOf(column, row), at, row]);
  keyed.sort(([a, at], [b, bt]) => (none(a) || none(b) ? compare(a, b) : compare(a, b) * (order.down ? -1 : 1)) || at - bt);
  return keyed.map(([, , row]) => row);
}

function matching(rows, columns, words) {
  const wanted = words.trim().toLowerCase().split(/\s+/).filter(Boolean);
  if (wanted.length === 0) return rows;
  return rows.filter((row) => {
    const text = columns.map((column) => valueOf(column, row) ?? "").join(" ").toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
}

/**
 * Return the changed rows by key: how often they changed, so that each change flashes, and when, so that scrolling does not
 * flash an old change again.
 */
function useChanges(rows, columns, keyOf, wanted) {
  const before = useRef(new Map());
  const turns = useRef(new Map());
  return useMemo(() => {
    if (!wanted) return turns.current;
    const seen = new Map();
    for (const row of rows) {
      const key = keyOf(row);
      const text = columns.map((column) => String(valueOf(column, row))).join("\u0000");
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
 * `columns`: [{id, title, value(row), show(row), align: "right", sort: true, width, phone: false, about}]. `phone: false` hides
 * a column on narrow screens. `order`: the initial order {id, down}. `wrap`: rows have their natural height; for short tables.
 */
export function Table({ columns, rows, rowKey, onOpen, empty = "No rows.", find = false, flash = false, order = null, wrap = false, label = "", selected }) {
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
  const first = natural ? 0 : Math.max(0, Math.floor(view.top / ROW_PX) - OVERSCAN);
  const last = natural ? shown.length : Math.min(shown.length, Math.ceil((view.top + view.height) / ROW_PX) + OVERSCAN);
  const at = Math.min(active, Math.max(0, shown.length - 1));

  // If the active row is scrolled out of view, the first rendered row gets the focus instead.
  const focusable = at >= first && at < last ? at : first;

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
    // The rows can have changed their order. The focus stays with its row.
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
    // Links and inputs in the row handle their own clicks. Rendering the row before the input's change event would undo
    // the change of a checkbox.
    if (event.target.closest("a, button, input, select, label")) return;
    setActive(index);
    if (onOpen && getSelection().isCollapsed) onOpen(row);
  };
  const sortBy = (column) => setBy((old) => (old?.id !== column.id ? { id: column.id, down: column.align === "right" } : { id: column.id, down: !old.down }));

  const side = (column) => `${column.align === "right" ? "right" : ""} ${column.phone === false ? "wide-cell" : ""}`;
  const isFilteredEmpty = rows.length > 0 && shown.length === 0;
  return html`<div class="table">
    ${find && html`<div class="table-find">
      <input type="search" data-find data-test="find" aria-label=${`Find in ${label || "this table"}`} placeholder="Find  ( / )" value=${words} onInput=${(event) => (setWords(event.target.value), setActive(0))} />
      <span class="quiet" data-test="found">${words ? `${shown.length} of ${rows.length}` : rows.length > 0 ? rows.length : ""}</span>
    </div>`}
    <div class="table-box" ref=${box} onScroll=${() => setView({ top: box.current.scrollTop, height: box.current.clientHeight })} onKeyDown=${pressed}>
      <table class=${natural ? "natural" : "fixed"} aria-rowcount=${shown.length + 1} aria-label=${label || undefined}>
        <colgroup>${columns.map((column) => html`<col key=${column.id} class=${column.phone === false ? "wide-cell" : ""} style=${column.width ? { width: typeof column.width === "number" ? `${column.width}px` : column.width } : undefined} />`)}</colgroup>
        <thead><tr aria-rowindex="1">${columns.map((column) => html`<th key=${column.id} scope="col" class=${side(column)} title=${column.about} aria-sort=${by?.id === column.id ? (by.down ? "descending" : "ascending") : undefined}>
          ${column.sort === false || !column.title ? column.title : html`<button type="button" class="sort" onClick=${() => sortBy(column)}>${column.title}<span class="sort-mark" aria-hidden="true">${by?.id === column.id ? (by.down ? "▾" : "▴") : ""}</span></button>`}
        </th>`)}</tr></thead>
        <tbody>
          ${first > 0 && html`<tr key="above" aria-hidden="true" class="spacer" style=${{ height: `${first * ROW_PX}px` }}><td colspan=${columns.length}></td></tr>`}
          ${shown.slice(first, last).map((row, offset) => {
            const index = first + offset;
            const key = keyOf(row);
            const change = flash ? changes.get(key) : undefined;
            return html`<tr key=${String(key)} data-at=${index} data-key=${String(key)} aria-rowindex=${index + 2} tabindex=${index === focusable ? 0 : -1} aria-selected=${selected !== undefined && selected === key ? "true" : undefined}
              class=${`${onOpen ? "opens" : ""} ${change && performance.now() - change.at < FLASH_MS ? `flash-${change.turn % 2}` : ""}`} onClick=${(event) => clicked(event, row, index)} onFocus=${() => index !== at && setActive(index)}>
              ${columns.map((column) => html`<td key=${column.id} class=${side(column)}>${column.show ? column.show(row) : (valueOf(column, row) ?? "–")}</td>`)}
            </tr>`;
          })}
          ${last < shown.length && html`<tr key="below" aria-hidden="true" class="spacer" style=${{ height: `${(shown.length - last) * ROW_PX}px` }}><td colspan=${columns.length}></td></tr>`}
        </tbody>
      </table>
      ${shown.length === 0 && html`<div class="table-empty" data-test="empty">${isFilteredEmpty ? `No row contains "${words}".` : empty}</div>`}
    </div>
  </div>`;
}
