// Shows the health of the app in words, and what to do. Screen readers announce only this line.

import { html, useMemo, useState } from "/page/vendor/ui.js";
import { linkTo } from "/page/address.js";

const WORDS = { good: "All is well", warning: "Needs attention", bad: "Something is wrong" };
const RANK = { bad: 0, warning: 1, good: 2 };

const sentence = (text) => (text ? text[0].toUpperCase() + text.slice(1) : "");

const Line = ({ line }) => {
  const link = linkTo(line.path);
  return html`<li class=${`health-item ${line.state}`}>
    <span class=${`dot ${line.state}`} aria-hidden="true"></span>
    <span class="health-words"><span>${sentence(line.text)}</span>${line.next && html`<span class="health-next">${sentence(line.next)}</span>`}</span>
    ${link && html`<a class="health-link" href=${link}>Show<span class="unseen"> ${line.text}</span></a>`}
  </li>`;
};

export function HealthLine({ now, connected, problem }) {
  const [open, setOpen] = useState(false);
  const lines = [...(now?.health?.lines ?? [])].sort((a, b) => (RANK[a.state] ?? 3) - (RANK[b.state] ?? 3));
  const first = lines[0];
  // Announce only a change of the problem, because the numbers change every second.
  const announced = useMemo(() => (connected ? sentence(first?.text) : ""), [connected, now?.health?.state, first?.path?.join("/")]);
  if (!now) {
    const words = problem ? "Unknown: the server does not respond" : "Connecting to the server…";
    return html`<div class="health unknown" data-test="health"><span class="dot" aria-hidden="true"></span><span class="health-text">${words}</span></div>`;
  }
  const state = connected ? (now.health?.state ?? "good") : "unknown";
  const link = first ? linkTo(first.path) : "";
  const more = lines.length - 1;
  return html`<div class=${`health ${state}`} data-test="health" data-state=${state}>
    <span class=${`dot ${state}`} aria-hidden="true"></span>
    <span class="unseen" role="status">${announced}</span>
    <div class="health-text">
      <span class="health-first">${connected ? (sentence(first?.text) || WORDS[state]) : `Last known: ${first?.text ?? WORDS[now.health?.state ?? "good"]}`}</span>
      ${first?.next && state !== "good" && html`<span class="health-next">${sentence(first.next)}</span>`}
    </div>
    ${link && html`<a class="health-link" href=${link} data-test="health-link">Show</a>`}
    ${more > 0 && html`<button type="button" class="health-more" aria-expanded=${open} onClick=${() => setOpen(!open)} data-test="health-more">${open ? "less" : `+${more} more`}</button>`}
    ${open && more > 0 && html`<ul class="health-all">${lines.map((line, index) => html`<${Line} key=${index} line=${line} />`)}</ul>`}
  </div>`;
}
