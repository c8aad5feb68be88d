// Saves a result as a file.

import { stringify } from "/client/headrace.js";
import { textOf } from "../views/values.js";

/** Encode the rows as JSON objects. If two columns have the same name, the later one gets a number. */
export function asJson({ columns, rows }) {
  const names = [];
  for (const { name } of columns) {
    let free = name;
    for (let number = 2; names.includes(free); number++) free = `${name}_${number}`;
    names.push(free);
  }
  return `[${rows.map((row) => stringify(Object.fromEntries(row.map((value, at) => [names[at], value])))).join(",\n ")}]\n`;
}

/** Encode the rows as CSV (RFC 4180). Texts that a spreadsheet would treat as formulas are prefixed with an apostrophe. */
export function asCsv({ columns, rows }) {
  const line = (values) => values.map(field).join(",");
  return `${[columns.map((column) => column.name), ...rows].map(line).join("\r\n")}\r\n`;
}

function field(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number" || typeof value === "bigint" || typeof value === "boolean") return String(value);
  const text = textOf(value);
  const isNumber = text.trim() !== "" && Number.isFinite(Number(text));
  const plain = /^[=+\-@\t\r]/.test(text) && !isNumber ? `'${text}` : text;
  return /[",\r\n']|^\s|\s$/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
}

export function save(text, name, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = Object.assign(document.createElement("a"), { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
