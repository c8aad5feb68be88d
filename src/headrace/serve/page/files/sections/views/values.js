// Values of rows, for people: what a value is, how it looks in a cell, and in which order rows are.

import { stringify } from "/client/headrace.js";
import { html } from "/page/vendor/ui.js";

const CELL_CHARS_MAX = 300;

/** The text of a value as one would write it; a text is itself. */
export const textOf = (value) => (typeof value === "string" ? value : value === undefined ? "" : stringify(value));

export const isNumber = (value) => typeof value === "number" || typeof value === "bigint";

/** For a cell of a table: one line, cut where nobody reads on. */
export function cell(value, kind = "") {
  if (value === null || value === undefined) return html`<span class="value-null">null</span>`;
  const text = kind === "time" ? textOf(value).replace(/\.0+Z$/, "Z") : kind?.digits ? inPlaces(textOf(value), kind.digits[1]) : textOf(value);
  const cut = text.length > CELL_CHARS_MAX ? `${text.slice(0, CELL_CHARS_MAX)}…` : text;
  const style = typeof value === "object" ? "value-json" : typeof value === "boolean" ? "value-bool" : "";
  return style ? html`<span class=${style}>${cut}</span>` : cut;
}

/** Below each other, decimals have their points in one line. */
function inPlaces(text, places) {
  const [whole, rest = ""] = text.split(".");
  return places > rest.length && /^-?\d+$/.test(whole) ? `${whole}.${rest.padEnd(places, "0")}` : text;
}

/** What a column holds, in words. */
export function kindText(kind) {
  if (typeof kind === "string") return kind;
  if (kind?.digits) return `decimal(${kind.digits.join(", ")})`;
  if (kind?.choice) return `one of ${kind.choice.join(", ")}`;
  if (kind?.many) return `list of ${kindText(kind.many)}`;
  if (kind?.named) return `map of ${kindText(kind.named)}`;
  if (kind?.record) return `record of ${kind.record.map((one) => one.name).join(", ")}`;
  return "";
}

export const isNumeric = (kind) => kind === "int" || kind === "float" || Boolean(kind?.digits);

/** Lists, maps and records have no order. */
export const isComparable = (kind) => typeof kind === "string" || Boolean(kind?.digits || kind?.choice);

/** A row's key as the log writes it: the text of one column, or a JSON object of several. */
export function keyText(key, row) {
  if (key.length === 1) return textOf(row[key[0]]);
  return stringify(Object.fromEntries(key.map((name) => [name, row[name]])));
}

/** A name as filters take it. */
export const quotedName = (name) => (/^[A-Za-z_][A-Za-z0-9_]*$/.test(name) ? name : `\`${name.replaceAll("`", "``")}\``);

/** ``-price,name`` as columns with their direction. */
export const sortParts = (sort) =>
  (sort || "")
    .split(",")
    .filter(Boolean)
    .map((one) => ({ name: one.replace(/^-/, "").replace(/^`|`$/g, ""), down: one.startsWith("-") }));

/** The order in which the server gives rows: null first, texts by code points, NaN behind all numbers; then by key. */
export function inOrder(sort, columns, key) {
  const kinds = new Map(columns.map((one) => [one.name, one.kind]));
  const parts = [...sortParts(sort), ...key.map((name) => ({ name, down: false }))];
  return (a, b) => {
    for (const { name, down } of parts) {
      const found = compared(a[name], b[name], isNumeric(kinds.get(name)));
      if (found) return down ? -found : found;
    }
    return 0;
  };
}

function compared(a, b, numeric) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  if (!numeric) return comparedTexts(textOf(a), textOf(b));
  const [x, y] = [Number(a), Number(b)];
  if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
  return x < y ? -1 : x > y ? 1 : 0;
}

/** Halves of pairs come behind all other units, as their characters do. */
const unit = (code) => (code >= 0xe000 ? code - 0x800 : code >= 0xd800 ? code + 0x2000 : code);

function comparedTexts(a, b) {
  const length = Math.min(a.length, b.length);
  for (let at = 0; at < length; at++) {
    const found = unit(a.charCodeAt(at)) - unit(b.charCodeAt(at));
    if (found) return found;
  }
  return a.length - b.length;
}
