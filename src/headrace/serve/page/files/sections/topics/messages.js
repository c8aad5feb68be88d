// Shows messages of a topic: the newest, those in a range, or those that match an expression.

import { html, useEffect, useMemo, useState } from "/page/vendor/ui.js";
import { Button, Field, Panel, ProblemBox } from "/page/parts/box.js";
import { bytes, count, duration, exactly, rate, time } from "/page/parts/numbers.js";
import { Table } from "/page/parts/table.js";
import { filtersOf, saveFilter } from "/page/sections/topics/filters.js";
import { parseBound } from "/page/sections/topics/bounds.js";
import { RecordDialog } from "/page/sections/topics/record.js";
import { useSearch } from "/page/sections/topics/search.js";

const LIMIT = 100;
const PREVIEW_CHARS = 300;

const preview = (part) => (part === null ? html`<span class="quiet">null</span>` : part.text !== undefined ? part.text.slice(0, PREVIEW_CHARS) : html`<span class="quiet">hex</span> ${hex(part.base64)}`);
const hex = (base64) => [...atob(base64.slice(0, 64))].map((char) => char.charCodeAt(0).toString(16).padStart(2, "0")).join(" ");
const sizeOf = (row) => (row.key?.size ?? 0) + (row.value?.size ?? 0);
export const keyOf = (row) => `${row.partition}:${row.offset}`;

const COLUMNS = [
  { id: "at", title: "Time", value: (row) => row.at_ms, show: (row) => html`<span title=${row.at_ms === null ? "" : new Date(row.at_ms).toISOString()}>${time(row.at_ms)}</span>`, width: 150 },
  { id: "partition", title: "P", about: "Partition", value: (row) => row.partition, align: "right", width: 56 },
  { id: "offset", title: "Offset", value: (row) => row.offset, show: (row) => exactly(row.offset), align: "right", width: 110 },
  { id: "key", title: "Key", value: (row) => row.key?.text ?? "", show: (row) => html`<span class="mono">${preview(row.key)}</span>`, width: 180 },
  { id: "value", title: "Value", value: (row) => row.value?.text ?? "", show: (row) => html`<span class="mono">${preview(row.value)}</span>` },
  { id: "size", title: "Size", value: sizeOf, show: (row) => bytes(sizeOf(row)), align: "right", width: 90, phone: false },
];

function bodyOf(query) {
  const begin = parseBound(query.from);
  const end = parseBound(query.to);
  if (begin === undefined) return { wrong: "from" };
  if (end === undefined) return { wrong: "to" };
  const partition = /^\d{1,9}$/.test(query.partition ?? "") ? [Number(query.partition)] : null;
  return { body: { where: query.where ?? "", from: begin, to: end, partitions: partition, newest_first: query.order !== "oldest", limit: LIMIT } };
}

const Progress = ({ state, searched }) => {
  const progress = state.progress;
  if (!progress || !searched) return null;
  const share = progress.of > 0 ? progress.done / progress.of : 1;
  const why = { limit: `the first ${count(progress.found)} are shown`, bytes: "the size limit of a search is reached", time: "the time limit of a search is reached" }[state.end?.why];
  return html`<div class="search-progress" data-test="search-progress" data-state=${state.running ? "running" : state.end ? "done" : "stopped"}>
    <progress max="1" value=${share} aria-label="Searched"></progress>
    <span>${state.running ? "Searching" : state.end ? "Searched" : "Stopped at"} <b>${exactly(progress.done)}</b> of ${exactly(progress.of)}, found <b>${exactly(state.records.length)}</b>${why ? `; ${why}` : ""}</span>${" "}
    <span class="quiet">${rate(progress.per_s)}${state.end ? ` in ${duration(state.end.took_s)}` : ""}</span>
    ${progress.failed > 0 && html`<span class="search-failed" title="The expression uses fields that these records lack, or compares values of different types.">${count(progress.failed)} could not be evaluated</span>`}
  </div>`;
};

function download(topic, records) {
  const blob = new Blob(records.map((record) => `${JSON.stringify(record)}\n`), { type: "application/x-ndjson" });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `${topic}.ndjson`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

const HELP = [
  ['key == "o-17"', "the key as text"],
  ["value.amount > 5 && value.paid == true", "fields of a value that is JSON"],
  ['text.contains("timeout")', "the raw value, JSON or not"],
  ['text.matches("(?i)error|failed")', "a regular expression; (?i) ignores case"],
  ['headers["source"] == "till 3"', "a header"],
  ['time > timestamp("2026-01-31T12:00:00Z")', "the time of the record"],
  ['has(value.note) && size(value.items) > 2', "a field exists; the length of a list"],
];

function Filters({ topic, where, onUse }) {
  const [saved, setSaved] = useState(() => filtersOf(topic));
  const [name, setName] = useState(null);
  const save = (event) => {
    event.preventDefault();
    if (name.trim()) setSaved(saveFilter(topic, name.trim().slice(0, 60), where));
    setName(null);
  };
  const known = saved.find((filter) => filter.where === where);
  return html`<div class="search-filters">
    ${saved.length > 0 && html`<label class="unseen" for="saved-filters">Saved filters</label><select id="saved-filters" class="input" value=${known?.name ?? ""} onChange=${(event) => event.target.value && onUse(saved.find((filter) => filter.name === event.target.value).where)} data-test="saved-filters">
      <option value="">Saved filters…</option>${saved.map((filter) => html`<option key=${filter.name} value=${filter.name}>${filter.name}</option>`)}
    </select>`}
    ${name !== null
      ? html`<form class="search-save" onSubmit=${save}><input class="input" aria-label="Name of the filter" placeholder="Name" maxlength="60" value=${name} onInput=${(event) => setName(event.target.value)} data-test="filter-name" /><${Button} type="submit" data-test="filter-save">Save<//></form>`
      : known
        ? html`<${Button} kind="plain" onClick=${() => setSaved(saveFilter(topic, known.name, ""))}>Delete filter "${known.name}"<//>`
        : where && html`<${Button} kind="plain" onClick=${() => setName("")} data-test="filter-new">Save this filter<//>`}
  </div>`;
}

export function Messages({ name, partitions, query, go, api }) {
  const [state, run, stop] = useSearch(api, name);
  const [where, setWhere] = useState(query.where ?? "");
  const [range, setRange] = useState({ from: query.from ?? "", to: query.to ?? "", partition: query.partition ?? "", order: query.order ?? "" });
  const [help, setHelp] = useState(false);
  const submitted = { where: query.where, from: query.from, to: query.to, partition: query.partition, order: query.order };
  const { body, wrong } = useMemo(() => bodyOf(query), [JSON.stringify(submitted)]);
  useEffect(() => {
    setWhere(query.where ?? "");
    setRange({ from: query.from ?? "", to: query.to ?? "", partition: query.partition ?? "", order: query.order ?? "" });
    if (body) run(body);
  }, [body]);

  const edited = { where: where.trim(), ...range };
  const search = (event) => {
    event?.preventDefault();
    const same = Object.keys(edited).every((name) => (edited[name] ?? "") === (submitted[name] ?? ""));
    // Evaluate the bounds again, because a bound such as "-15m" is relative to now.
    if (same && body) run(bodyOf(query).body);
    else go("topics", [name, "messages"], edited);
  };
  const use = (text) => {
    setWhere(text);
    go("topics", [name, "messages"], { ...edited, where: text });
  };
  const change = (field) => (event) => setRange({ ...range, [field]: event.target.value });
  const open = query.record ? state.records.find((record) => keyOf(record) === query.record) ?? null : null;
  const show = (record) => go("topics", [name, "messages"], { ...submitted, record });
  const more = state.end?.next;
  const pressed = (event) => event.key === "Enter" && !event.shiftKey && search(event);
  const wrongWhere = state.problem?.code === "HR-SERVE-WHERE" ? state.problem : null;

  return html`<${Panel} class="search">
      <form onSubmit=${search} role="search">
        <div class="search-line">
          <${Field} label="Where" error=${wrongWhere && `${wrongWhere.detail}${wrongWhere.hint ? ` — ${wrongWhere.hint}` : ""}`}>
            <textarea class="mono" rows=${Math.min(6, where.split("\n").length)} spellcheck=${false} autocomplete="off" data-find placeholder='value.amount > 5 && key == "a"   (empty: every message)' value=${where} maxlength="2000" onInput=${(event) => setWhere(event.target.value)} onKeyDown=${pressed} data-test="where"></textarea>
          <//>
          ${state.running ? html`<${Button} onClick=${stop} data-test="stop">Stop<//>` : html`<${Button} type="submit" kind="primary" data-test="search">Search<//>`}
        </div>
        <div class="search-bounds">
          <${Field} label="From" error=${wrong === "from" && "enter an offset, a time, or a duration such as -1h"}><input value=${range.from} onInput=${change("from")} placeholder="the first" data-test="from" /><//>
          <${Field} label="To" error=${wrong === "to" && "enter an offset, a time, or a duration such as -1h"}><input value=${range.to} onInput=${change("to")} placeholder="the last" data-test="to" /><//>
          <${Field} label="Partition"><select value=${range.partition} onChange=${change("partition")} data-test="partition"><option value="">all</option>${Array.from({ length: Math.min(partitions ?? 0, 1_000) }, (_, number) => html`<option key=${number} value=${String(number)}>${number}</option>`)}</select><//>
          <${Field} label="Order"><select value=${range.order} onChange=${change("order")} data-test="order"><option value="">newest first</option><option value="oldest">oldest first</option></select><//>
          <${Filters} key=${name} topic=${name} where=${where.trim()} onUse=${use} />
          <${Button} kind="plain" onClick=${() => setHelp(!help)} aria-expanded=${help}>${help ? "Hide" : "Help"}<//>
        </div>
        ${help && html`<table class="search-help" aria-label="Variables and functions"><tbody>${HELP.map(([text, about]) => html`<tr key=${text}><td><button type="button" class="link mono" onClick=${() => setWhere(text)}>${text}</button></td><td class="quiet">${about}</td></tr>`)}</tbody></table>`}
      </form>
      <${Progress} state=${state} searched=${Boolean(body?.where)} />
    <//>
    ${state.problem && !wrongWhere && html`<${ProblemBox} problem=${state.problem} />`}
    <${Panel} title=${body?.where ? "Found" : "Messages"} aside=${html`${state.records.length > 0 && html`<${Button} kind="plain" onClick=${() => download(name, state.records)} data-test="download">Download ${count(state.records.length)}<//>`}`}>
      <${Table} label="Messages" columns=${COLUMNS} rows=${state.records} rowKey=${keyOf} onOpen=${(row) => show(keyOf(row))} empty=${state.running ? "Searching…" : body?.where ? "No matching message." : "No messages."} />
      ${more && !state.running && html`<div class="search-more"><${Button} onClick=${() => run({ ...body, ...more }, state.records)} data-test="more">More<//></div>`}
    <//>
    ${query.record && html`<${RecordDialog} key=${query.record} topic=${name} id=${query.record} listed=${open} api=${api} onClose=${() => show("")} />`}`;
}
