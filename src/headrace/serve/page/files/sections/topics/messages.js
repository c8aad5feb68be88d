// Messages of a topic: the newest, those from a place on, or those of which an expression is true, in all of it.

import { html, useEffect, useMemo, useState } from "/page/vendor/ui.js";
import { Button, Field, Panel, ProblemBox } from "/page/parts/box.js";
import { bytes, count, duration, exactly, rate, time } from "/page/parts/numbers.js";
import { Table } from "/page/parts/table.js";
import { filtersOf, saveFilter } from "/page/sections/topics/filters.js";
import { edgeOf } from "/page/sections/topics/places.js";
import { RecordDialog } from "/page/sections/topics/record.js";
import { useSearch } from "/page/sections/topics/searching.js";

const LIMIT = 100;
const PREVIEW_CHARS = 300;

const preview = (part) => (part === null ? html`<span class="quiet">null</span>` : part.text !== undefined ? part.text.slice(0, PREVIEW_CHARS) : html`<span class="quiet">hex</span> ${hex(part.base64)}`);
const hex = (base64) => [...atob(base64.slice(0, 64))].map((one) => one.charCodeAt(0).toString(16).padStart(2, "0")).join(" ");
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
  const begin = edgeOf(query.from);
  const end = edgeOf(query.to);
  if (begin === undefined) return { wrong: "from" };
  if (end === undefined) return { wrong: "to" };
  const partition = /^\d{1,9}$/.test(query.partition ?? "") ? [Number(query.partition)] : null;
  return { body: { where: query.where ?? "", from: begin, to: end, partitions: partition, newest_first: query.order !== "oldest", limit: LIMIT } };
}

const Progress = ({ state, searched }) => {
  const told = state.progress;
  if (!told || !searched) return null;
  const share = told.of > 0 ? told.done / told.of : 1;
  const why = { limit: `the first ${count(told.found)} are shown`, bytes: "that is as much as is shown at once", time: "that is as long as a search takes at once" }[state.end?.why];
  return html`<div class="search-progress" data-test="search-progress" data-state=${state.running ? "running" : state.end ? "done" : "stopped"}>
    <progress max="1" value=${share} aria-label="Searched"></progress>
    <span>${state.running ? "Searching" : state.end ? "Searched" : "Stopped at"} <b>${exactly(told.done)}</b> of ${exactly(told.of)}, found <b>${exactly(state.records.length)}</b>${why ? `; ${why}` : ""}</span>${" "}
    <span class="quiet">${rate(told.per_s)}${state.end ? ` in ${duration(state.end.took_s)}` : ""}</span>
    ${told.failed > 0 && html`<span class="search-failed" title="It asks for what these records do not have, or compares what cannot be compared.">${count(told.failed)} could not be told</span>`}
  </div>`;
};

function download(topic, records) {
  const blob = new Blob(records.map((one) => `${JSON.stringify(one)}\n`), { type: "application/x-ndjson" });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `${topic}.ndjson`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

const HELP = [
  ['key == "o-17"', "the key, as text"],
  ["value.amount > 5 && value.paid == true", "fields of a value that is JSON"],
  ['text.contains("timeout")', "the value as it is written, JSON or not"],
  ['text.matches("(?i)error|failed")', "a regular expression; (?i) does not look at case"],
  ['headers["source"] == "till 3"', "a header"],
  ['time > timestamp("2026-01-31T12:00:00Z")', "when it was written"],
  ['has(value.note) && size(value.items) > 2', "whether there is one, and how many"],
];

function Filters({ topic, where, onUse }) {
  const [saved, setSaved] = useState(() => filtersOf(topic));
  const [name, setName] = useState(null);
  const save = (event) => {
    event.preventDefault();
    if (name.trim()) setSaved(saveFilter(topic, name.trim().slice(0, 60), where));
    setName(null);
  };
  const known = saved.find((one) => one.where === where);
  return html`<div class="search-filters">
    ${saved.length > 0 && html`<label class="unseen" for="saved-filters">Saved filters</label><select id="saved-filters" class="input" value=${known?.name ?? ""} onChange=${(event) => event.target.value && onUse(saved.find((one) => one.name === event.target.value).where)} data-test="saved-filters">
      <option value="">Saved filters…</option>${saved.map((one) => html`<option key=${one.name} value=${one.name}>${one.name}</option>`)}
    </select>`}
    ${name !== null
      ? html`<form class="search-save" onSubmit=${save}><input class="input" aria-label="Name of the filter" placeholder="Its name" maxlength="60" value=${name} onInput=${(event) => setName(event.target.value)} data-test="filter-name" /><${Button} type="submit" data-test="filter-save">Save<//></form>`
      : known
        ? html`<${Button} kind="plain" onClick=${() => setSaved(saveFilter(topic, known.name, ""))}>Forget "${known.name}"<//>`
        : where && html`<${Button} kind="plain" onClick=${() => setName("")} data-test="filter-new">Save this filter<//>`}
  </div>`;
}

export function Messages({ name, partitions, query, go, api }) {
  const [state, run, stop] = useSearch(api, name);
  const [where, setWhere] = useState(query.where ?? "");
  const [place, setPlace] = useState({ from: query.from ?? "", to: query.to ?? "", partition: query.partition ?? "", order: query.order ?? "" });
  const [help, setHelp] = useState(false);
  const asked = { where: query.where, from: query.from, to: query.to, partition: query.partition, order: query.order };
  const { body, wrong } = useMemo(() => bodyOf(query), [JSON.stringify(asked)]);
  useEffect(() => {
    setWhere(query.where ?? "");
    setPlace({ from: query.from ?? "", to: query.to ?? "", partition: query.partition ?? "", order: query.order ?? "" });
    if (body) run(body);
  }, [body]);

  const wanted = { where: where.trim(), ...place };
  const search = (event) => {
    event?.preventDefault();
    const same = Object.keys(wanted).every((one) => (wanted[one] ?? "") === (asked[one] ?? ""));
    // "-15m" is of now.
    if (same && body) run(bodyOf(query).body);
    else go("topics", [name, "messages"], wanted);
  };
  const use = (text) => {
    setWhere(text);
    go("topics", [name, "messages"], { ...wanted, where: text });
  };
  const change = (field) => (event) => setPlace({ ...place, [field]: event.target.value });
  const open = query.record ? state.records.find((one) => keyOf(one) === query.record) ?? null : null;
  const show = (record) => go("topics", [name, "messages"], { ...asked, record });
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
        <div class="search-places">
          <${Field} label="From" error=${wrong === "from" && "an offset, a time, or -1h"}><input value=${place.from} onInput=${change("from")} placeholder="the first" data-test="from" /><//>
          <${Field} label="To" error=${wrong === "to" && "an offset, a time, or -1h"}><input value=${place.to} onInput=${change("to")} placeholder="the last" data-test="to" /><//>
          <${Field} label="Partition"><select value=${place.partition} onChange=${change("partition")} data-test="partition"><option value="">all</option>${Array.from({ length: Math.min(partitions ?? 0, 1_000) }, (_, one) => html`<option key=${one} value=${String(one)}>${one}</option>`)}</select><//>
          <${Field} label="Order"><select value=${place.order} onChange=${change("order")} data-test="order"><option value="">newest first</option><option value="oldest">oldest first</option></select><//>
          <${Filters} key=${name} topic=${name} where=${where.trim()} onUse=${use} />
          <${Button} kind="plain" onClick=${() => setHelp(!help)} aria-expanded=${help}>${help ? "Hide" : "What can be asked"}<//>
        </div>
        ${help && html`<table class="search-help" aria-label="What can be asked"><tbody>${HELP.map(([text, about]) => html`<tr key=${text}><td><button type="button" class="link mono" onClick=${() => setWhere(text)}>${text}</button></td><td class="quiet">${about}</td></tr>`)}</tbody></table>`}
      </form>
      <${Progress} state=${state} searched=${Boolean(body?.where)} />
    <//>
    ${state.problem && !wrongWhere && html`<${ProblemBox} problem=${state.problem} />`}
    <${Panel} title=${body?.where ? "Found" : "Messages"} aside=${html`${state.records.length > 0 && html`<${Button} kind="plain" onClick=${() => download(name, state.records)} data-test="download">Download ${count(state.records.length)}<//>`}`}>
      <${Table} label="Messages" columns=${COLUMNS} rows=${state.records} rowKey=${keyOf} onOpen=${(row) => show(keyOf(row))} empty=${state.running ? "Searching…" : body?.where ? "No message is like that." : "There are no messages."} />
      ${more && !state.running && html`<div class="search-more"><${Button} onClick=${() => run({ ...body, ...more }, state.records)} data-test="more">More<//></div>`}
    <//>
    ${query.record && html`<${RecordDialog} key=${query.record} topic=${name} place=${query.record} found=${open} api=${api} onClose=${() => show("")} />`}`;
}
