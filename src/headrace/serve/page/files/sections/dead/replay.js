// The dialog that replays dead letters: first a dry run and then, after confirmation, the real run.

import { html, useEffect, useRef, useState } from "/page/vendor/ui.js";
import { Button, Dialog, ProblemBox, State } from "/page/parts/box.js";
import { bytes, exactly } from "/page/parts/numbers.js";
import { Table } from "/page/parts/table.js";

/** Format a record's location, such as `orders/0/7`, without the offset if it is not known yet. */
export const recordText = (id) => (id ? [id.topic, id.partition, id.offset].filter((part) => part !== null && part !== undefined && part !== -1).join("/") : "–");

const POLL_MS = 500;
const STATE_TEXT = { ready: "would be written", written: "written", already: "was written before", cannot: "not possible" };
const TONES = { ready: "good", written: "good", already: "", cannot: "bad" };

const noteOf = (row) => [row.why, row.unfit && `still invalid: ${row.unfit}`, row.headers === "unknown" && row.state !== "cannot" && "the original record is deleted; its headers are unknown"].filter(Boolean).join("; ");

const COLUMNS = [
  { id: "letter", title: "Letter", value: (row) => `${row.letter.partition}/${row.letter.offset}` },
  { id: "state", title: "", value: (row) => STATE_TEXT[row.state], show: (row) => html`<${State} state=${STATE_TEXT[row.state]} kind=${row.unfit ? "warn" : TONES[row.state]} />` },
  { id: "to", title: "To", value: (row) => recordText(row.to) },
  { id: "bytes", title: "Size", value: (row) => row.bytes, show: (row) => (row.bytes ? bytes(row.bytes) : "–"), align: "right", phone: false },
  { id: "note", title: "Note", value: noteOf },
];

/** Start with a dry run. `start` begins another run. A real run continues on the server after the dialog is closed. */
function useReplay(api, topic, letters) {
  const [status, setStatus] = useState(null);
  const [problem, setProblem] = useState(null);
  const controller = useRef(new AbortController());
  const path = `/v1/dead/${encodeURIComponent(topic)}/replay`;
  const [writing, setWriting] = useState(false);
  /** Start a run, or attach to a real run that is still running. */
  const request = (options, signal) =>
    api.post(path, { letters, ...options }, { signal }).catch(async (error) => {
      const running = error.code === "HR-SERVE-REPLAYING" ? await api.get(path, {}, { signal }).catch(() => null) : null;
      if (running?.state !== "running" || running.dry_run) throw error;
      return running;
    });
  const start = async (options) => {
    const { signal } = controller.current;
    setProblem(null);
    setStatus(null);
    setWriting(!options.dry_run);
    try {
      let current = await request(options, signal);
      setStatus(current);
      while (current.state === "running" && !signal.aborted) {
        await new Promise((done) => setTimeout(done, POLL_MS));
        current = await api.get(path, {}, { signal });
        setStatus(current);
      }
    } catch (error) {
      if (!signal.aborted) setProblem(error);
    }
  };
  useEffect(() => {
    start({ dry_run: true });
    return () => controller.current.abort();
  }, []);
  const cancel = () => api.post(`/v1/dead/${encodeURIComponent(topic)}/cancel`, {}).catch(setProblem);
  return { status, problem, start, cancel, dry: status?.dry_run ?? !writing };
}

const failed = (error) => ({ title: "The replay stopped early", detail: error.message, hint: error.hint, code: error.code });

export function ReplayDialog({ topic, letters, api, onClose }) {
  const [repeat, setRepeat] = useState(false);
  const { status, problem, start, cancel, dry } = useReplay(api, topic, letters);
  const runs = !problem && (status === null || status.state === "running");
  const ready = status?.totals?.ready ?? 0;
  const changeRepeat = (isRepeated) => {
    setRepeat(isRepeated);
    start({ dry_run: true, again: isRepeated });
  };
  // Cancel an unfinished dry run, because the server runs only one replay per topic.
  const close = () => {
    if (runs && status && dry) cancel();
    onClose();
  };
  return html`<${Dialog} title=${letters === "all" ? `Write all letters of ${topic} back` : `Write ${letters.length === 1 ? "a letter" : `${letters.length} letters`} of ${topic} back`} onClose=${close} wide=${true}>
    <${ProblemBox} problem=${problem} />
    ${status?.error && html`<${ProblemBox} problem=${failed(status.error)} />`}
    ${runs && html`<p class="quiet">${dry ? "Checking" : "Writing"}${status ? `: ${exactly(status.progress.done)} of ${exactly(status.progress.of)}` : "…"}</p>
      ${status && html`<progress max=${Math.max(1, status.progress.of)} value=${status.progress.done} aria-label="Progress"></progress>`}`}
    ${status && !runs && html`<ul class="dead-words" data-test=${dry ? "replay-preview" : "replay-result"}>${status.words.map((line) => html`<li key=${line}>${line}</li>`)}</ul>`}
    ${status && status.results.length > 0 && html`<${Table} label="Result of each letter" columns=${COLUMNS} rows=${status.results} rowKey=${(row) => `${row.letter.partition}/${row.letter.offset}`} wrap=${true} />
      ${status.left_off > 0 && html`<p class="quiet">and ${exactly(status.left_off)} more, which are included in the numbers above</p>`}`}
    ${dry && !runs && html`<label class="dead-again"><input type="checkbox" checked=${repeat} onChange=${(event) => changeRepeat(event.target.checked)} /> Include letters that were written back before</label>
      <p class="quiet">Each record is written once, unchanged. It becomes the newest record of its key for all readers of the topic.</p>`}
    <div class="actions">
      ${runs && !dry && html`<${Button} kind="danger" onClick=${cancel}>Cancel the replay<//>`}
      <${Button} onClick=${close} data-test="close">${dry ? "Cancel" : "Close"}<//>
      ${dry && html`<${Button} kind="primary" busy=${runs} disabled=${ready === 0} onClick=${() => start({ again: repeat })} data-test="write">Write ${ready > 0 ? exactly(ready) : ""} back<//>`}
    </div>
  <//>`;
}
