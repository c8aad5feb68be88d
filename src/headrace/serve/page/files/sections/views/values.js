// Formats the values of rows, and compares rows.

import { stringify } from "/client/headrace.js";
import { html } from "/page/vendor/ui.js";

const CELL_CHARS_MAX = 300;

/** Return a text unchanged, and any other value as JSON. */
export const textOf = (value) => (typeof value === "string" ? value : value === undefined ? "" : stringify(value));

export const isNumber = (value) => typeof value === "number" || typeof value === "bigint";

/** Return one line for a table cell, truncated. */
export function cell(value, kind = "") {
  if (value === null || value === undefined) return html`<span class="value-null">null</span>`;
  const text = kind === "time" ? textOf(value).replace(/\.0+Z$/, "Z") : kind?.digits ? padDecimals(textOf(value), kind.digits[1]) : textOf(value);
  const cut = text.length > CELL_CHARS_MAX ? `${text.slice(0, CELL_CHARS_MAX)}…` : text;
  const style = typeof value === "object" ? "value-json" : typeof value === "boolean" ? "value-bool" : "";
  return style ? html`<span class=${style}>${cut}</span>` : cut;
}

/** Pad decimals so that their points align. */
function padDecimals(text, digits) {
  const [whole, rest = ""] = text.split(".");
  return digits > rest.length && /^-?\d+$/.test(whole) ? `${whole}.${rest.padEnd(digits, "0")}` : text;
}

/** Return the type of a column in words. */
export function kindText(kind) {
  if (typeof kind === "string") return kind;
  if (kind?.digits) return `decimal(${kind.digits.join(", ")})`;
  if (kind?.choice) return `one of ${kind.choice.join(", ")}`;
  if (kind?.many) return `list of ${kindText(kind.many)}`;
  if (kind?.named) return `map of ${kindText(kind.named)}`;
  if (kind?.record) return `record of ${kind.record.map((field) => field.name).join(", ")}`;
  return "";
}

export const isNumeric = (kind) => kind === "int" || kind === "float" || Boolean(kind?.digits);

/** Lists, maps and records have no order. */
export const isComparable = (kind) => typeof kind === "string" || Boolean(kind?.digits || kind?.choice);

/** Return a row's key in the format of the log: the text of one column, or a JSON object of several. */
export function keyText(key, row) {
  if (key.length === 1) return textOf(row[key[0]]);
  return stringify(Object.fromEntries(key.map((name) => [name, row[name]])));
}

/** Quote a name if a filter requires it. */
export const quotedName = (name) => (/^[A-Za-z_][A-Za-z0-9_]*$/.test(name) ? name : `\`${name.replaceAll("`", "``")}\``);

/** Parse a sort order such as ``-price,name`` into columns with their direction. */
export const sortParts = (sort) =>
  (sort || "")
    .split(",")
    .filter(Boolean)
    .map((part) => ({ name: part.replace(/^-/, "").replace(/^`|`$/g, ""), down: part.startsWith("-") }));

/** Return a comparison of rows as on the server: null first, texts by code points, NaN after all numbers, then by key. */
export function rowOrder(sort, columns, key) {
  const kinds = new Map(columns.map((column) => [column.name, column.kind]));
  const parts = [...sortParts(sort), ...key.map((name) => ({ name, down: false }))];
  return (a, b) => {
    for (const { name, down } of parts) {
      const order = compare(a[name], b[name], isNumeric(kinds.get(name)));
      if (order) return down ? -order : order;
    }
    return 0;
  };
}

function compare(a, b, numeric) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  if (!numeric) return compareTexts(textOf(a), textOf(b));
  const [x, y] = [Number(a), Number(b)];
  if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
  return x < y ? -1 : x > y ? 1 : 0;
}

/** Map a UTF-16 code unit so that surrogates sort last, as their code points do. */
const unit = (code) => (code >= 0xe000 ? code - 0x800 : code >= 0xd800 ? code + 0x2000 : code);

function compareTexts(a, b) {
  const length = Math.min(a.length, b.length);
  for (let at = 0; at < length; at++) {
    const difference = unit(a.charCodeAt(at)) - unit(b.charCodeAt(at));
    if (difference) return difference;
  }
  return a.length - b.length;
}
