// The dead letters of a topic, newest first, with the bytes of a selected letter, and buttons to replay, correct and dismiss letters.

import { html, useEffect, useRef, useState } from "/page/vendor/ui.js";
import { address } from "/page/address.js";
import { Button, Empty, Panel, ProblemBox, State } from "/page/parts/box.js";
import { BytesView } from "/page/parts/bytes_view.js";
import { ago, bytes, time } from "/page/parts/numbers.js";
import { Table } from "/page/parts/table.js";
import { recordText, TaskDialog } from "/page/sections/dead/task.js";

const PAGE = 100;

const keyOf = (row) => `${row.partition}/${row.offset}`;
const at = (row) => Date.parse(row.time);

const TONES = { open: "bad", replayed: "good", settled: "good", dismissed: "" };

/** Describe how the letter got its state. */
const changeText = (row) => {
  if (!row.change) return row.cannot && `cannot be written back: ${row.cannot}`;
  const at = time(Date.parse(row.change.at));
  return row.change.to ? `${at}, to ${recordText(row.change.to)}${row.change.corrected ? ", with a corrected value" : ""}` : `${at}: ${row.change.reason}`;
};

const StateOf = ({ row }) => html`<${State} state=${row.state} kind=${TONES[row.state]} title=${changeText(row)} />`;

const valueText = (row) => (row.value !== undefined ? (row.value ?? "null") : `${bytes(row.value_bytes)} of binary data`);

/** The columns of the table. While a letter is open, its panel shows the value instead of the table. */
const columns = (now_ms, chosen, choose, open) => [
  { id: "choose", title: "", sort: false, width: 34, value: () => "", show: (row) => html`<input type="checkbox" aria-label=${`Choose letter ${keyOf(row)}`} data-test="choose" checked=${chosen.has(keyOf(row))} onChange=${(event) => choose(row, event.target.checked)} />` },
  { id: "state", title: "State", value: (row) => row.state, show: (row) => html`<${StateOf} row=${row} />` },
  { id: "time", title: "When", value: at, show: (row) => html`<span title=${time(at(row))}>${ago(at(row), now_ms)}</span>` },
  { id: "reason", title: "Reason", value: (row) => row.reason },
  { id: "message", title: "Message", value: (row) => row.message || row.exception },
  { id: "origin", title: "Original record", value: (row) => recordText(row.origin) },
  { id: "value", title: "Value", value: valueText, show: (row) => html`<span class="mono">${valueText(row).slice(0, 200)}</span>`, phone: false },
].filter((column) => !open || !["value", "message"].includes(column.id));

/** Return the letters of all loaded pages. `reload` starts again with the first page. */
function useLetters(api, topic, state) {
  const [pages, setPages] = useState({ letters: null, next: null });
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const requests = useRef(0);
  const load = async (path, before) => {
    requests.current += 1;
    const number = requests.current;
    // A response to an earlier request, for another state or topic, must not replace newer letters.
    const isNewest = () => number === requests.current;
    setBusy(true);
    try {
      const page = await api.get(path, path.includes("?") ? {} : { limit: PAGE, ...(state === "all" ? {} : { state }) });
      if (!isNewest()) return;
      setPages({ letters: [...before, ...page.letters], next: page.next });
      setProblem(null);
    } catch (error) {
      if (isNewest()) setProblem(error);
    } finally {
      if (isNewest()) setBusy(false);
    }
  };
  const reload = () => load(`/v1/dead/${encodeURIComponent(topic)}/letters`, []);
  useEffect(() => {
    reload();
  }, [topic, state]);
  return { ...pages, problem, busy, reload, more: () => load(pages.next, pages.letters) };
}

const Letter = ({ row }) => html`
  <dl class="facts">
    <dt>State</dt><dd>${row.state}${changeText(row) && html` <span class="quiet">(${changeText(row)})</span>`}</dd>
    <dt>Reason</dt><dd>${row.reason}: ${row.message || "no details"}</dd>
    <dt>Original record</dt><dd>${row.origin ? html`<a href=${address("topics", [row.origin.topic])}>${recordText(row.origin)}</a>` : "unknown"}</dd>
    ${row.refusals.map((refusal, number) => html`<dt key=${`r${number}`}>${number === 0 ? "Rejected by" : ""}</dt><dd>${refusal.kind} ${refusal.of}, ${time(Date.parse(refusal.time))}${refusal.settled ? ", settled" : ""}</dd>`)}
    ${row.headers.map((header, number) => html`<dt key=${`h${number}`}>Header ${header.name}</dt><dd class="mono">${header.value ?? header.value_base64 ?? "null"}</dd>`)}
  </dl>
  <h3 class="dead-part">Key</h3>
  <${BytesView} text=${row.key ?? null} base64=${row.key_base64 ?? null} none="No key." />
  <h3 class="dead-part">Value</h3>
  <${BytesView} text=${row.value ?? null} base64=${row.value_base64 ?? null} />
  ${row.value_cut && html`<p class="quiet">Truncated: the whole value has ${bytes(row.value_bytes)}.</p>`}`;

export function Letters({ topic, letterPath, now, go, api }) {
  const [state, setState] = useState("all");
  const { letters, next, problem, busy, reload, more } = useLetters(api, topic, state);
  const [chosen, setChosen] = useState(new Map());
  const [task, setTask] = useState(null);
  const choose = (row, isChosen) =>
    setChosen((old) => {
      const changed = new Map(old);
      if (isChosen) changed.set(keyOf(row), { partition: row.partition, offset: row.offset });
      else changed.delete(keyOf(row));
      return changed;
    });
  const closed = () => {
    setTask(null);
    setChosen(new Map());
    reload();
  };
  const open = letters?.find((row) => keyOf(row) === letterPath.join("/"));
  return html`<div class="page-head">
      <h1><a class="crumb" href=${address("dead")}>Dead letters</a> ${topic}</h1>
      <div class="page-aside">
        <select class="input" aria-label="State" value=${state} onChange=${(event) => setState(event.target.value)} data-test="state">${["all", ...Object.keys(TONES)].map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select>
        <${Button} busy=${busy} onClick=${reload}>Refresh<//>
        <${Button} disabled=${chosen.size === 0} onClick=${() => setTask({ action: "dismiss", letters: [...chosen.values()] })} data-test="dismiss-chosen">Dismiss ${chosen.size > 0 ? chosen.size : "chosen"}…<//>
        <${Button} disabled=${chosen.size === 0} onClick=${() => setTask({ action: "replay", letters: [...chosen.values()] })} data-test="replay-chosen">Replay ${chosen.size > 0 ? chosen.size : "chosen"}…<//>
        <${Button} kind="primary" disabled=${!letters?.length} onClick=${() => setTask({ action: "replay", letters: "all" })} data-test="replay-all">Replay all open…<//>
      </div>
    </div>
    <${ProblemBox} problem=${problem} />
    ${letterPath.length > 0 && letters !== null && !open && html`<p class="quiet" data-test="not-among">Letter ${letterPath.join("/")} is not among the newest ${letters.length}${next ? ". Load older letters below" : ". The topic has no other letters"}.</p>`}
    ${letters === null
      ? !problem && html`<p class="quiet">Reading the letters…</p>`
      : letters.length === 0
        ? html`<${Empty} title="No dead letters" text=${state === "all" ? "All records were accepted." : `No letter is ${state}.`} />`
        : html`<div class=${open ? "dead-split" : ""}>
            <${Panel} title="Letters" aside="newest first">
              <${Table} label="Dead letters" columns=${columns(now?.at_ms, chosen, choose, open)} rows=${letters} rowKey=${keyOf} selected=${open && keyOf(open)} onOpen=${(row) => go("dead", [topic, String(row.partition), String(row.offset)])} find=${true} />
              ${next && html`<div class="actions"><${Button} busy=${busy} onClick=${more}>Load older<//></div>`}
            <//>
            ${open && html`<${Panel} title=${`Letter ${keyOf(open)}`} data-test="letter" aside=${html`${!open.cannot && html`<${Button} onClick=${() => setTask({ action: "correct", row: open })} data-test="correct">Correct…<//>`}<${Button} kind="plain" onClick=${() => go("dead", [topic])}>Close<//>`}><${Letter} row=${open} /><//>`}
          </div>`}
    ${task && html`<${TaskDialog} topic=${topic} task=${task} api=${api} onClose=${closed} />`}`;
}
