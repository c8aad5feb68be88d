// Whether what is served is what follows from the log: the last verification of a view, and the next one.

import { Button, Panel, ProblemBox } from "/page/parts/box.js";
import { ago, duration, exactly, time } from "/page/parts/numbers.js";
import { html, useEffect, useState } from "/page/vendor/ui.js";
import { VERDICTS } from "./standings.js";

const RUNNING_MS = 300;
const IDLE_MS = 5_000;

export function Proof({ view, api }) {
  const [told, setTold] = useState(null);
  const [problem, setProblem] = useState(null);
  const [turn, setTurn] = useState(0);
  const path = `/v1/views/${encodeURIComponent(view.answered_by)}/verify`;
  useEffect(() => {
    const over = new AbortController();
    let timer;
    const look = async () => {
      let next = IDLE_MS;
      try {
        const found = await api.get(path, {}, { signal: over.signal });
        setTold(found);
        if (found.state === "running") next = RUNNING_MS;
      } catch (trouble) {
        if (over.signal.aborted) return;
        setProblem(trouble);
      }
      if (!over.signal.aborted) timer = setTimeout(look, next);
    };
    look();
    return () => (over.abort(), clearTimeout(timer));
  }, [path, turn]);
  const begin = async () => {
    setProblem(null);
    try {
      await api.post(path, {});
      setTold((last) => ({ ...last, state: "running", progress: null }));
    } catch (trouble) {
      setProblem(trouble);
    }
    setTurn((last) => last + 1);
  };
  const running = told?.state === "running";
  return html`
    <div class="view-proof">
      <${Panel} title="Verification" aside=${html`<${Button} kind="primary" onClick=${begin} busy=${running} data-test="verify">Verify now<//>`}>
        <p class="view-lead">
          Every row is derived again from the log, ${view.written_by ? html`with the function of flow <b>${view.written_by}</b>, through the very batch that the view is at,` : "up to the offsets that the view is at,"}
          ${" "}and compared with what is served. None of the code that wrote the view takes part.
        </p>
        ${problem ? html`<${ProblemBox} problem=${problem} />` : ""}
        ${running ? html`<${Progress} progress=${told.progress} />` : ""}
        ${told === null ? (problem ? "" : html`<p class="view-note">Asking…</p>`) : told.last ? html`<${Found} proof=${told.last} />` : running ? "" : html`<p class="view-note" data-test="unverified">It has not been verified yet.</p>`}
      <//>
    </div>`;
}

function Progress({ progress }) {
  const of = progress?.of || null;
  return html`
    <div class="view-progress" data-test="progress">
      <progress max=${of ?? undefined} value=${of ? progress.done : undefined} aria-label="verification"></progress>
      <span>${progress?.text || "begins"}${of ? `: ${exactly(progress.done)} of ${exactly(of)} records` : "…"}${progress?.seconds ? `, for ${duration(progress.seconds)}` : ""}</span>
    </div>`;
}

/** What was found, in words: what is wrong, and what cannot be proven and why, are lines of it. */
function Found({ proof }) {
  const verdict = VERDICTS[proof.verdict] ?? { state: "warn", text: "It could not be verified." };
  const differing = proof.missing + proof.extra + proof.different;
  const [first, ...more] = proof.lines;
  return html`
    <div class=${`view-report ${verdict.state}`} data-test="report">
      <p class="view-verdict" data-test="verdict">${verdict.text}</p>
      <p>${first}</p>
      ${proof.hint ? html`<p class="problem-hint">${proof.hint}</p>` : ""}
      <dl class="facts">
        <dt>When</dt><dd>${time(proof.at_ms)}, ${ago(proof.at_ms)}</dd>
        <dt>Took</dt><dd>${duration(proof.seconds)}</dd>
        <dt>Records read</dt><dd>${exactly(proof.records)}</dd>
        <dt>Rows found</dt><dd>${exactly(proof.rows)}</dd>
        ${differing ? html`<dt>Rows that differ</dt><dd>${exactly(proof.missing)} missing, ${exactly(proof.extra)} that should not be there, ${exactly(proof.different)} with other values</dd>` : ""}
      </dl>
      ${more.length ? html`<pre class="code">${more.map((line) => line.replace(/^ {2}/, "")).join("\n")}</pre>` : ""}
      ${proof.code ? html`<code class="problem-code">${proof.code}</code>` : ""}
    </div>`;
}
