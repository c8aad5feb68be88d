// The components that all sections share.

import { html, useEffect, useId, useRef, useState, h } from "/page/vendor/ui.js";

export const Panel = ({ title, aside, children, class: name = "", ...rest }) => html`
  <section class=${`panel ${name}`} aria-label=${typeof title === "string" ? title : undefined} ...${rest}>
    ${(title || aside) && html`<header class="panel-head"><h2>${title}</h2>${aside && html`<div class="panel-aside">${aside}</div>`}</header>`}
    <div class="panel-body">${children}</div>
  </section>`;

export const Empty = ({ title, text, action }) => html`
  <div class="empty" data-test="empty"><h3>${title}</h3>${text && html`<p>${text}</p>`}${action && html`<div class="empty-action">${action}</div>`}</div>`;

export const ProblemBox = ({ problem }) =>
  problem &&
  html`<div class="problem" role="alert" data-test="problem">
    <strong>${problem.title || "The request failed"}</strong>
    <p>${problem.detail || problem.message || String(problem)}</p>
    ${problem.hint && html`<p class="problem-hint">${problem.hint}</p>`}
    ${problem.code && html`<code class="problem-code">${problem.code}</code>`}
  </div>`;

/** `unit` is shown after the value, `note` below it. */
export const Stat = ({ label, value, unit, note, state, title }) => html`
  <div class=${`stat ${state ?? ""}`} title=${title} data-test=${`stat-${String(label).toLowerCase().replace(/\W+/g, "-")}`}>
    <div class="stat-label">${label}</div>
    <div class="stat-value">${value}${unit && html` <span class="stat-unit">${unit}</span>`}</div>
    ${note && html`<div class="stat-note">${note}</div>`}
  </div>`;

/** `tabs`: [{id, title, count, href}]. With `href`, the tabs are links, and the address selects the tab. */
export const Tabs = ({ tabs, current, onChange, label = "Parts" }) => {
  const hasLinks = tabs.some((tab) => tab.href);
  if (hasLinks) {
    return html`<nav class="tabs" aria-label=${label}>
      ${tabs.map((tab) => html`<a key=${tab.id} href=${tab.href} class="tab" aria-current=${tab.id === current ? "true" : undefined} data-test=${`tab-${tab.id}`}>${tab.title}${tab.count !== undefined && html` <span class="tab-count">${tab.count}</span>`}</a>`)}
    </nav>`;
  }
  const pressed = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = tabs.findIndex((tab) => tab.id === current);
    const next = (at + step + tabs.length) % tabs.length;
    onChange(tabs[next].id);
    event.currentTarget.children[next].focus();
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} onKeyDown=${pressed}>
    ${tabs.map((tab) => html`<button key=${tab.id} type="button" role="tab" class="tab" aria-selected=${tab.id === current} tabindex=${tab.id === current ? 0 : -1}
      onClick=${() => onChange(tab.id)} data-test=${`tab-${tab.id}`}>${tab.title}${tab.count !== undefined && html` <span class="tab-count">${tab.count}</span>`}</button>`)}
  </div>`;
};

export const Button = ({ onClick, kind = "default", busy = false, disabled = false, type = "button", children, class: name = "", ...rest }) => html`
  <button type=${type} class=${`button ${kind} ${name}`} onClick=${busy ? undefined : onClick} disabled=${disabled || busy} aria-busy=${busy ? "true" : undefined} ...${rest}>
    ${busy && html`<span class="spinner" aria-hidden="true"></span>`}${children}
  </button>`;

/** The browser's dialog keeps the focus inside and closes on Esc. When it closes, the focus returns to the previous element. */
export function Dialog({ title, onClose, children, wide = false }) {
  const box = useRef(null);
  const id = useId();
  useEffect(() => {
    const before = document.activeElement;
    box.current.showModal();
    return () => before?.focus?.();
  }, []);
  const cancelled = (event) => {
    event.preventDefault();
    onClose();
  };
  // Dragging a selection out of a field must not close the dialog.
  const pressed = useRef(null);
  const clicked = (event) => event.target === box.current && pressed.current === box.current && onClose();
  return html`<dialog ref=${box} class=${`dialog ${wide ? "wide" : ""}`} aria-labelledby=${id} onCancel=${cancelled} onMouseDown=${(event) => (pressed.current = event.target)} onClick=${clicked} data-test="dialog">
    <div class="dialog-inside">
      <header class="dialog-head"><h2 id=${id}>${title}</h2><button type="button" class="icon-button" aria-label="Close" onClick=${onClose}>✕</button></header>
      <div class="dialog-body">${children}</div>
    </div>
  </dialog>`;
}

/** The only child is the input. The label, the hint and the error refer to it. */
export function Field({ label, hint, error, children }) {
  const id = useId();
  const control = Array.isArray(children) ? children.find((child) => child && typeof child === "object") : children;
  const descriptionId = error || hint ? `${id}-description` : undefined;
  const labelledInput = control && h(control.type, { ...control.props, id: control.props.id ?? id, "aria-describedby": descriptionId, "aria-invalid": error ? "true" : undefined });
  return html`<div class=${`field ${error ? "wrong" : ""}`}>
    <label for=${control?.props.id ?? id}>${label}</label>
    ${labelledInput}
    ${descriptionId && html`<p id=${descriptionId} class=${error ? "field-error" : "field-hint"}>${error || hint}</p>`}
  </div>`;
}

export function Copy({ text, label = "Copy" }) {
  const [done, setDone] = useState(false);
  useEffect(() => {
    if (!done) return undefined;
    const timer = setTimeout(() => setDone(false), 1_500);
    return () => clearTimeout(timer);
  }, [done]);
  const copy = async (event) => {
    event.stopPropagation();
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      return; // The page has no permission for the clipboard, so do not show that the text was copied.
    }
    setDone(true);
  };
  return html`<button type="button" class="copy" onClick=${copy} title=${label} aria-label=${done ? "Copied" : `${label}: ${String(text).slice(0, 60)}`}>${done ? "✓" : copyIcon}</button>`;
}

const copyIcon = html`<svg viewBox="0 0 16 16" width="13" height="13" aria-hidden="true"><rect x="5.5" y="5.5" width="8" height="8" rx="1.5" fill="none" stroke="currentColor" stroke-width="1.3" /><path d="M10.5 3.5v-1h-8v8h1" fill="none" stroke="currentColor" stroke-width="1.3" /></svg>`;

const KINDS = {
  good: ["good", "running", "following", "ok", "live", "ready", "resolved", "verified", "done", "stable", "active", "idle"],
  warn: ["warning", "warn", "pending", "starting", "catching up", "rebuilding", "waiting", "late", "paused", "behind", "building", "preparing", "stopping"],
  bad: ["bad", "failed", "firing", "dead", "lost", "error", "stopped", "differs", "critical", "killed"],
};

/** Return the colour class of a state, or an empty text for an unknown state. */
export function kindOf(state) {
  const word = String(state ?? "").toLowerCase();
  return Object.keys(KINDS).find((kind) => KINDS[kind].includes(word)) ?? "";
}

export const State = ({ state, kind = kindOf(state), title }) => html`
  <span class=${`state ${kind}`} title=${title}><span class=${`dot ${kind}`} aria-hidden="true"></span>${state || "unknown"}</span>`;
