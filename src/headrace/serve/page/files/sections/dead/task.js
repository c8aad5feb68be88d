// The dialog that replays, corrects or dismisses dead letters: first a dry run and then, after confirmation, the real run.

import { html, useEffect, useRef, useState } from "/page/vendor/ui.js";
import { Button, Dialog, Field, ProblemBox, State } from "/page/parts/box.js";
import { bytes, exactly } from "/page/parts/numbers.js";
import { Table } from "/page/parts/table.js";

/** Format a record's location, such as `orders/0/7`, without the offset if it is not known yet. */
export const recordText = (id) => (id ? [id.topic, id.partition, id.offset].filter((part) => part !== null && part !== undefined && part !== -1).join("/") : "–");

const POLL_MS = 500;
const TONES = { ready: "good", written: "good", dismissed: "good", skipped: "", cannot: "bad" };
const VERBS = { replay: "Replay", correct: "Correct", dismiss: "Dismiss" };

const outcomeText = (reader) => `${reader.reader} ${reader.outcome}${reader.note ? `: ${reader.note}` : ""}`;
const noteOf = (row) => [row.why, ...(row.readers ?? []).map(outcomeText), row.headers === "unknown" && row.state !== "cannot" && "the original record is deleted; its headers are unknown"].filter(Boolean).join("; ");

const COLUMNS = [
  { id: "letter", title: "Letter", value: (row) => `${row.letter.partition}/${row.letter.offset}` },
  { id: "state", title: "", value: (row) => row.state, show: (row) => html`<${State} state=${row.state} kind=${row.unfit ? "warn" : TONES[row.state]} />` },
  { id: "to", title: "To", value: (row) => recordText(row.to) },
  { id: "bytes", title: "Size", value: (row) => row.bytes, show: (row) => (row.bytes ? bytes(row.bytes) : "–"), align: "right", phone: false },
  { id: "note", title: "Note", value: noteOf },
];

/** `start` begins a run. A real run continues on the server after the dialog is closed. */
function useJob(api, topic, action) {
  const [status, setStatus] = useState(null);
  const [problem, setProblem] = useState(null);
  const [dry, setDry] = useState(true);
  const [busy, setBusy] = useState(false);
  const controller = useRef(new AbortController());
  const path = `/v1/dead/${encodeURIComponent(topic)}`;
  /** Start a run, or attach to a real run that is still running. */
  const request = (body, signal) =>
    api.post(`${path}/${action}`, body, { signal }).catch(async (error) => {
      const running = error.code === "HR-SERVE-REPLAYING" ? await api.get(`${path}/replay`, {}, { signal }).catch(() => null) : null;
      if (running?.state !== "running" || running.dry_run) throw error;
      return running;
    });
  const start = async (body) => {
    const { signal } = controller.current;
    setProblem(null);
    setStatus(null);
    setDry(body.dry_run === true);
    setBusy(true);
    try {
      let current = await request(body, signal);
      setStatus(current);
      while (current.state === "running" && !signal.aborted) {
        await new Promise((done) => setTimeout(done, POLL_MS));
        current = await api.get(`${path}/replay`, {}, { signal });
        setStatus(current);
      }
    } catch (error) {
      if (!signal.aborted) setProblem(error);
    } finally {
      if (!signal.aborted) setBusy(false);
    }
  };
  useEffect(() => () => controller.current.abort(), []);
  const cancel = () => api.post(`${path}/cancel`, {}).catch(setProblem);
  return { status, problem, busy, start, cancel, dry: status?.dry_run ?? dry };
}

const failed = (error) => ({ title: "The job stopped early", detail: error.message, hint: error.hint, code: error.code });

const titleOf = ({ action, letters, row }, topic) => {
  const what = row ? `letter ${row.partition}/${row.offset}` : letters === "all" ? "all open letters" : letters.length === 1 ? "a letter" : `${letters.length} letters`;
  return `${VERBS[action]} ${what} of ${topic}`;
};

export function TaskDialog({ topic, task, api, onClose }) {
  const { action, letters, row } = task;
  const [force, setForce] = useState(false);
  const [text, setText] = useState(action === "correct" ? (row.value ?? "") : "");
  const { status, problem, busy, start, cancel, dry } = useJob(api, topic, action);
  const body = (more) => ({
    ...(action === "correct" ? { letter: { partition: row.partition, offset: row.offset }, value: text } : { letters }),
    ...(action === "dismiss" ? { reason: text } : {}),
    ...more,
  });
  useEffect(() => {
    if (action === "replay") start(body({ dry_run: true }));
  }, []);
  const ready = status?.totals?.ready ?? 0;
  const preview = (isForced) => start(body({ dry_run: true, force: isForced }));
  const changeForce = (isForced) => {
    setForce(isForced);
    if (action === "replay" || text) preview(isForced);
  };
  // Cancel an unfinished dry run, because the server runs only one job at a time.
  const close = () => {
    if (busy && status && dry) cancel();
    onClose();
  };
  const done = status && !busy && !dry && status.state === "done" && !status.error;
  return html`<${Dialog} title=${titleOf(task, topic)} onClose=${close} wide=${true}>
    <${ProblemBox} problem=${problem} />
    ${status?.error && html`<${ProblemBox} problem=${failed(status.error)} />`}
    ${action === "correct" && html`<${Field} label="Corrected value"><textarea class="mono" rows="6" spellcheck=${false} disabled=${!dry} value=${text} onInput=${(event) => setText(event.target.value)} data-test="value"></textarea><//>`}
    ${action === "dismiss" && html`<${Field} label="Why the records are not needed"><input class="input" maxlength="1000" disabled=${!dry} value=${text} onInput=${(event) => setText(event.target.value)} data-test="reason" /><//>`}
    ${busy && html`<p class="quiet">${dry ? "Checking" : "Running"}${status ? `: ${exactly(status.progress.done)} of ${exactly(status.progress.of)}` : "…"}</p>
      ${status && html`<progress max=${Math.max(1, status.progress.of)} value=${status.progress.done} aria-label="Progress"></progress>`}`}
    ${status && !busy && html`<ul class="dead-words" data-test=${dry ? "preview" : "result"}>${status.words.map((line) => html`<li key=${line}>${line}</li>`)}</ul>`}
    ${status && status.results.length > 0 && html`<${Table} label="Result of each letter" columns=${COLUMNS} rows=${status.results} rowKey=${(result) => `${result.letter.partition}/${result.letter.offset}`} wrap=${true} />
      ${status.left_off > 0 && html`<p class="quiet">and ${exactly(status.left_off)} more, which are included in the numbers above</p>`}`}
    ${dry && !busy && html`<label class="dead-force"><input type="checkbox" checked=${force} onChange=${(event) => changeForce(event.target.checked)} /> Include letters that are not open</label>
      ${action !== "dismiss" && html`<p class="quiet">Each record is written once. It becomes the newest record of its key for all readers of the topic.</p>`}`}
    <div class="actions">
      ${busy && !dry && html`<${Button} kind="danger" onClick=${cancel}>Cancel the job<//>`}
      <${Button} onClick=${close} data-test="close">${dry && !done ? "Cancel" : "Close"}<//>
      ${dry && action === "correct" && html`<${Button} busy=${busy} disabled=${!text} onClick=${() => preview(force)} data-test="check">Check<//>`}
      ${dry && action === "dismiss" && html`<${Button} kind="primary" busy=${busy} disabled=${!text.trim()} onClick=${() => start(body({ force }))} data-test="run">Dismiss<//>`}
      ${dry && action !== "dismiss" && html`<${Button} kind="primary" busy=${busy} disabled=${ready === 0} onClick=${() => start(body({ force }))} data-test="run">${VERBS[action]} ${ready > 0 ? exactly(ready) : ""}<//>`}
    </div>
  <//>`;
}
