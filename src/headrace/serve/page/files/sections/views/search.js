// The search form of a view: filter, keys, words, and live updates.

import { Button, Field } from "/page/parts/box.js";
import { html, useEffect, useState } from "/page/vendor/ui.js";
import { isComparable, isNumeric, kindText, quotedName } from "./values.js";

const FIELDS = ["filter", "prefix", "from", "to", "match"];

export const isFiltered = (query) => FIELDS.some((name) => query[name]);

/** Call ``onSearch`` with the new query when the form is submitted. */
export function Search({ schema, query, onSearch }) {
  const [typed, setTyped] = useState(query);
  const [open, setOpen] = useState(Boolean(query.prefix || query.from || query.to));
  useEffect(() => setTyped(query), FIELDS.map((name) => query[name]));
  const type = (name) => (event) => setTyped({ ...typed, [name]: event.target.value });
  const search = { ...query, ...Object.fromEntries(FIELDS.map((name) => [name, typed[name]])) };
  const send = (event) => {
    event.preventDefault();
    onSearch({ ...search, ...(typed.match ? { sort: "", live: "" } : {}) });
  };
  const comparable = schema.columns.filter((column) => isComparable(column.kind));
  const insert = (column) => setTyped({ ...typed, filter: `${typed.filter ? `${typed.filter} and ` : ""}${condition(column)}` });
  return html`
    <form class="view-search" onSubmit=${send} role="search" aria-label="Search rows">
      <div class="view-search-line">
        <label class="view-filter">
          <span class="unseen">Filter</span>
          <input type="text" spellcheck="false" autocomplete="off" value=${typed.filter ?? ""} onInput=${type("filter")}
            placeholder=${placeholder(comparable)} data-test="filter" list="view-columns" />
        </label>
        ${schema.store === "search"
          ? html`<label class="view-words"><span class="unseen">Words</span>
              <input type="text" value=${typed.match ?? ""} onInput=${type("match")} placeholder="words" data-test="match" /></label>`
          : ""}
        <${Button} kind="primary" type="submit" data-test="search">Search<//>
        <button type="button" class="view-link" aria-expanded=${open} onClick=${() => setOpen(!open)}>Keys and columns</button>
        ${isFiltered(query) ? html`<button type="button" class="view-link" data-test="clear" onClick=${() => onSearch({ sort: query.sort, live: query.live })}>Clear</button>` : ""}
        <span class="view-space"></span>
        <label class="view-live" title=${query.match ? "Live updates are not available for a search by words" : "Show every change as it happens"}>
          <input type="checkbox" role="switch" checked=${query.live === "1"} disabled=${Boolean(query.match)} data-test="live"
            onChange=${(event) => onSearch({ ...search, live: event.target.checked ? "1" : "" })} /> Live
        </label>
      </div>
      ${open
        ? html`
            <div class="view-search-more">
              <${Field} label="Key begins with" hint=${schema.key.length > 1 ? `a JSON object of the first key columns: ${schema.key.join(", ")}` : ""}>
                <input type="text" value=${typed.prefix ?? ""} onInput=${type("prefix")} data-test="prefix" /><//>
              <${Field} label="Keys from"><input type="text" value=${typed.from ?? ""} onInput=${type("from")} data-test="from" /><//>
              <${Field} label="Keys before"><input type="text" value=${typed.to ?? ""} onInput=${type("to")} data-test="to" /><//>
              <div class="view-columns">
                <span class="view-columns-head">Click a column to add it to the filter</span>
                ${schema.columns.map((column) => html`
                  <button type="button" key=${column.name} class="view-chip" disabled=${!comparable.includes(column)} onClick=${() => insert(column)}>
                    ${column.key ? html`<b title="part of the key">${column.name}</b>` : column.name} <small>${kindText(column.kind)}${column.optional ? ", or null" : ""}</small>
                  </button>`)}
              </div>
            </div>`
        : ""}
      <datalist id="view-columns">${comparable.map((column) => html`<option key=${column.name} value=${condition(column)}></option>`)}</datalist>
    </form>`;
}

function condition({ name, kind }) {
  if (isNumeric(kind)) return `${quotedName(name)} >= 0`;
  if (kind === "bool") return `${quotedName(name)} = true`;
  if (kind?.choice) return `${quotedName(name)} = ${JSON.stringify(kind.choice[0])}`;
  if (kind === "time") return `${quotedName(name)} >= "${new Date().toISOString().slice(0, 10)}T00:00:00Z"`;
  if (kind === "date") return `${quotedName(name)} >= "${new Date().toISOString().slice(0, 10)}"`;
  return kind === "text" ? `${quotedName(name)} startswith ""` : `${quotedName(name)} = ""`;
}

/** Return an example of a filter with columns of this view. */
function placeholder(columns) {
  const number = columns.find((column) => isNumeric(column.kind));
  const text = columns.find((column) => column.kind === "text" || column.kind?.choice);
  const parts = [number && `${quotedName(number.name)} >= 10`, text && `${quotedName(text.name)} = "…"`].filter(Boolean);
  return parts.length ? `filter, such as ${parts.join(" and ")}` : "filter";
}
