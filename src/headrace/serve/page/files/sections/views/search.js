// What is asked of a view's rows: a filter, keys, words, and whether to go on with what changes.

import { Button, Field } from "/page/parts/box.js";
import { html, useEffect, useState } from "/page/vendor/ui.js";
import { isComparable, isNumeric, kindText, quotedName } from "./values.js";

const ASKED = ["filter", "prefix", "from", "to", "match"];

export const isAsked = (query) => ASKED.some((name) => query[name]);

/** ``onAsk`` takes the query as it should be; what was typed counts when it is sent. */
export function Search({ told, query, onAsk }) {
  const [typed, setTyped] = useState(query);
  const [open, setOpen] = useState(Boolean(query.prefix || query.from || query.to));
  useEffect(() => setTyped(query), ASKED.map((name) => query[name]));
  const type = (name) => (event) => setTyped({ ...typed, [name]: event.target.value });
  const asked = { ...query, ...Object.fromEntries(ASKED.map((name) => [name, typed[name]])) };
  const send = (event) => {
    event.preventDefault();
    onAsk({ ...asked, ...(typed.match ? { sort: "", live: "" } : {}) });
  };
  const comparable = told.columns.filter((one) => isComparable(one.kind));
  const insert = (column) => setTyped({ ...typed, filter: `${typed.filter ? `${typed.filter} and ` : ""}${condition(column)}` });
  return html`
    <form class="view-search" onSubmit=${send} role="search" aria-label="Search rows">
      <div class="view-search-line">
        <label class="view-filter">
          <span class="unseen">Filter</span>
          <input type="text" spellcheck="false" autocomplete="off" value=${typed.filter ?? ""} onInput=${type("filter")}
            placeholder=${placeholder(comparable)} data-test="filter" list="view-columns" />
        </label>
        ${told.store === "search"
          ? html`<label class="view-words"><span class="unseen">Words</span>
              <input type="text" value=${typed.match ?? ""} onInput=${type("match")} placeholder="words" data-test="match" /></label>`
          : ""}
        <${Button} kind="primary" type="submit" data-test="search">Search<//>
        <button type="button" class="view-link" aria-expanded=${open} onClick=${() => setOpen(!open)}>Keys and columns</button>
        ${isAsked(query) ? html`<button type="button" class="view-link" data-test="clear" onClick=${() => onAsk({ sort: query.sort, live: query.live })}>Clear</button>` : ""}
        <span class="view-space"></span>
        <label class="view-live" title=${query.match ? "Words are not followed: ask without them" : "Go on with every change"}>
          <input type="checkbox" role="switch" checked=${query.live === "1"} disabled=${Boolean(query.match)} data-test="live"
            onChange=${(event) => onAsk({ ...asked, live: event.target.checked ? "1" : "" })} /> Live
        </label>
      </div>
      ${open
        ? html`
            <div class="view-search-more">
              <${Field} label="Key begins with" hint=${told.key.length > 1 ? `an object of the first of ${told.key.join(", ")}` : ""}>
                <input type="text" value=${typed.prefix ?? ""} onInput=${type("prefix")} data-test="prefix" /><//>
              <${Field} label="Keys from"><input type="text" value=${typed.from ?? ""} onInput=${type("from")} data-test="from" /><//>
              <${Field} label="Keys before"><input type="text" value=${typed.to ?? ""} onInput=${type("to")} data-test="to" /><//>
              <div class="view-columns">
                <span class="view-columns-head">Columns, to put into the filter</span>
                ${told.columns.map((one) => html`
                  <button type="button" key=${one.name} class="view-chip" disabled=${!comparable.includes(one)} onClick=${() => insert(one)}>
                    ${one.key ? html`<b title="of the key">${one.name}</b>` : one.name} <small>${kindText(one.kind)}${one.optional ? ", or null" : ""}</small>
                  </button>`)}
              </div>
            </div>`
        : ""}
      <datalist id="view-columns">${comparable.map((one) => html`<option key=${one.name} value=${condition(one)}></option>`)}</datalist>
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

/** An example that fits the columns. */
function placeholder(columns) {
  const number = columns.find((one) => isNumeric(one.kind));
  const text = columns.find((one) => one.kind === "text" || one.kind?.choice);
  const parts = [number && `${quotedName(number.name)} >= 10`, text && `${quotedName(text.name)} = "…"`].filter(Boolean);
  return parts.length ? `filter, as in ${parts.join(" and ")}` : "filter";
}
