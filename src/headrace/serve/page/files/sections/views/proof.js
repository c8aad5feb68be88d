// Shows the last verification of a view, and starts the next one.

import { Button, Panel, ProblemBox } from "/page/parts/box.js";
import { ago, duration, exactly, time } from "/page/parts/numbers.js";
import { html, useEffect, useState } from "/page/vendor/ui.js";
import { VERDICTS } from "./status.js";

const RUNNING_MS = 300;
const IDLE_MS = 5_000;

export function Proof({ view, api }) {
  const [status, setStatus] = useState(null);
  const [problem, setProblem] = useState(null);
  const [attempt, setAttempt] = useState(0);
  const path = `/v1/views/${encodeURIComponent(view.answered_by)}/verify`;
  useEffect(() => {
    const controller = new AbortController();
    let timer;
    const poll = async () => {
      let next = IDLE_MS;
      try {
        const current = await api.get(path, {}, { signal: controller.signal });
        setStatus(current);
        if (current.state === "running") next = RUNNING_MS;
      } catch (error) {
        if (controller.signal.aborted) return;
        setProblem(error);
      }
      if (!controller.signal.aborted) timer = setTimeout(poll, next);
    };
    poll();
    return () => (controller.abort(), clearTimeout(timer));
  }, [path, attempt]);
  const begin = async () => {
    setProblem(null);
    try {
      await api.post(path, {});
      setStatus((last) => ({ ...last, state: "running", progress: null }));
    } catch (error) {
      setProblem(error);
    }
    setAttempt((last) => last + 1);
  };
  const running = status?.state === "running";
  return html`
    <div class="view-proof">
      <${Panel} title="Verification" aside=${html`<${Button} kind="primary" onClick=${begin} busy=${running} data-test="verify">Verify now<//>`}>
        <p class="view-lead">
          Verification derives every row again from the log, ${view.written_by ? html`with the function of flow <b>${view.written_by}</b>, up to the batch of the view,` : "up to the offsets of the view,"}
          ${" "}and compares the result with the served rows. It does not use the code that writes the view.
        </p>
        ${problem ? html`<${ProblemBox} problem=${problem} />` : ""}
        ${running ? html`<${Progress} progress=${status.progress} />` : ""}
        ${status === null ? (problem ? "" : html`<p class="view-note">Loading the last proof…</p>`) : status.last ? html`<${Report} proof=${status.last} />` : running ? "" : html`<p class="view-note" data-test="unverified">Not verified yet.</p>`}
      <//>
    </div>`;
}

function Progress({ progress }) {
  const of = progress?.of || null;
  return html`
    <div class="view-progress" data-test="progress">
      <progress max=${of ?? undefined} value=${of ? progress.done : undefined} aria-label="verification"></progress>
      <span>${progress?.text || "starting"}${of ? `: ${exactly(progress.done)} of ${exactly(of)} records` : "…"}${progress?.seconds ? `, for ${duration(progress.seconds)}` : ""}</span>
    </div>`;
}

function Report({ proof }) {
  const verdict = VERDICTS[proof.verdict] ?? { state: "warn", text: "The verification failed." };
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
        ${differing ? html`<dt>Rows that differ</dt><dd>${exactly(proof.missing)} missing, ${exactly(proof.extra)} extra, ${exactly(proof.different)} with different values</dd>` : ""}
      </dl>
      ${more.length ? html`<pre class="code">${more.map((line) => line.replace(/^ {2}/, "")).join("\n")}</pre>` : ""}
      ${proof.code ? html`<code class="problem-code">${proof.code}</code>` : ""}
    </div>`;
}
