// Writing letters back: first what would happen, then, when somebody says so, what did.

import { html, useEffect, useRef, useState } from "/page/vendor/ui.js";
import { Button, Dialog, ProblemBox, State } from "/page/parts/box.js";
import { bytes, exactly } from "/page/parts/numbers.js";
import { Table } from "/page/parts/table.js";
import { placeText } from "/page/sections/dead/words.js";

const LOOK_MS = 500;
const SAID = { ready: "would be written", written: "written", already: "was written before", cannot: "cannot be" };
const TONES = { ready: "good", written: "good", already: "", cannot: "bad" };

const noteOf = (row) => [row.why, row.unfit && `does not fit today either: ${row.unfit}`, row.headers === "unknown" && row.state !== "cannot" && "the original is gone, and any headers it had with it"].filter(Boolean).join("; ");

const COLUMNS = [
  { id: "letter", title: "Letter", value: (row) => `${row.letter.partition}/${row.letter.offset}` },
  { id: "state", title: "", value: (row) => SAID[row.state], show: (row) => html`<${State} state=${SAID[row.state]} kind=${row.unfit ? "warn" : TONES[row.state]} />` },
  { id: "to", title: "To", value: (row) => placeText(row.to) },
  { id: "bytes", title: "Size", value: (row) => row.bytes, show: (row) => (row.bytes ? bytes(row.bytes) : "–"), align: "right", phone: false },
  { id: "note", title: "Note", value: noteOf },
];

/** Begins at once with a dry run; `write` begins the real one. What was begun goes on when nobody looks. */
function useReplay(api, topic, letters) {
  const [told, setTold] = useState(null);
  const [problem, setProblem] = useState(null);
  const gone = useRef(new AbortController());
  const path = `/v1/dead/${encodeURIComponent(topic)}/replay`;
  const [writing, setWriting] = useState(false);
  /** One that somebody has begun and left goes on, and is watched from here again. */
  const begun = (more, signal) =>
    api.post(path, { letters, ...more }, { signal }).catch(async (error) => {
      const other = error.code === "HR-SERVE-REPLAYING" ? await api.get(path, {}, { signal }).catch(() => null) : null;
      if (other?.state !== "running" || other.dry_run) throw error;
      return other;
    });
  const begin = async (more) => {
    const { signal } = gone.current;
    setProblem(null);
    setTold(null);
    setWriting(!more.dry_run);
    try {
      let found = await begun(more, signal);
      setTold(found);
      while (found.state === "running" && !signal.aborted) {
        await new Promise((done) => setTimeout(done, LOOK_MS));
        found = await api.get(path, {}, { signal });
        setTold(found);
      }
    } catch (error) {
      if (!signal.aborted) setProblem(error);
    }
  };
  useEffect(() => {
    begin({ dry_run: true });
    return () => gone.current.abort();
  }, []);
  const cancel = () => api.post(`/v1/dead/${encodeURIComponent(topic)}/cancel`, {}).catch(setProblem);
  return { told, problem, begin, cancel, dry: told?.dry_run ?? !writing };
}

const failed = (error) => ({ title: "It ended before its end", detail: error.message, hint: error.hint, code: error.code });

export function ReplayDialog({ topic, letters, api, onClose }) {
  const [again, setAgain] = useState(false);
  const { told, problem, begin, cancel, dry } = useReplay(api, topic, letters);
  const runs = !problem && (told === null || told.state === "running");
  const ready = told?.totals?.ready ?? 0;
  const asked = (wanted) => {
    setAgain(wanted);
    begin({ dry_run: true, again: wanted });
  };
  // A look that nobody waits for would keep others from theirs.
  const leave = () => {
    if (runs && told && dry) cancel();
    onClose();
  };
  return html`<${Dialog} title=${letters === "all" ? `Write all letters of ${topic} back` : `Write ${letters.length === 1 ? "a letter" : `${letters.length} letters`} of ${topic} back`} onClose=${leave} wide=${true}>
    <${ProblemBox} problem=${problem} />
    ${told?.error && html`<${ProblemBox} problem=${failed(told.error)} />`}
    ${runs && html`<p class="quiet">${dry ? "Looking what would happen" : "Writing"}${told ? `: ${exactly(told.progress.done)} of ${exactly(told.progress.of)}` : "…"}</p>
      ${told && html`<progress max=${Math.max(1, told.progress.of)} value=${told.progress.done} aria-label="How far it is"></progress>`}`}
    ${told && !runs && html`<ul class="dead-words" data-test=${dry ? "would" : "did"}>${told.words.map((line) => html`<li key=${line}>${line}</li>`)}</ul>`}
    ${told && told.results.length > 0 && html`<${Table} label="What becomes of each letter" columns=${COLUMNS} rows=${told.results} rowKey=${(row) => `${row.letter.partition}/${row.letter.offset}`} wrap=${true} />
      ${told.left_off > 0 && html`<p class="quiet">and ${exactly(told.left_off)} more, which are counted above</p>`}`}
    ${dry && !runs && html`<label class="dead-again"><input type="checkbox" checked=${again} onChange=${(event) => asked(event.target.checked)} /> also those that were written back before</label>
      <p class="quiet">Each record is written once, as it came. It becomes the newest of its key, for everybody who reads the topic.</p>`}
    <div class="actions">
      ${runs && !dry && html`<${Button} kind="danger" onClick=${cancel}>Call it off<//>`}
      <${Button} onClick=${leave} data-test="close">${dry ? "Leave it" : "Close"}<//>
      ${dry && html`<${Button} kind="primary" busy=${runs} disabled=${ready === 0} onClick=${() => begin({ again })} data-test="write">Write ${ready > 0 ? exactly(ready) : ""} back<//>`}
    </div>
  <//>`;
}
