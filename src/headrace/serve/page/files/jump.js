// The search field of the page, which goes to a topic, flow, view or section by name.

import { html, useId, useMemo, useState } from "/page/vendor/ui.js";
import { address, linkTo } from "/page/address.js";

const MATCHES_MAX = 12;

function targets(app, sections) {
  const entries = sections.map((section) => ({ name: section.title, kind: "section", href: address(section.id) }));
  for (const node of app?.nodes ?? []) {
    if (node.kind === "source") continue;
    const section = { topic: "topics", flow: "flows", view: "views" }[node.kind];
    entries.push({ name: node.name, kind: node.kind, href: linkTo(node.section_path) || address(section, [node.name]) });
  }
  return entries;
}

function matching(all, text) {
  const needle = text.trim().toLowerCase();
  if (needle === "") return all.slice(0, MATCHES_MAX);
  const rank = (target) => {
    const at = target.name.toLowerCase().indexOf(needle);
    return at < 0 ? -1 : at === 0 ? 0 : 1;
  };
  const ranked = all.map((entry) => [rank(entry), entry]).filter(([at]) => at >= 0);
  return ranked.sort(([a], [b]) => a - b).slice(0, MATCHES_MAX).map(([, target]) => target);
}

export function Jump({ app, sections }) {
  const id = useId();
  const [text, setText] = useState("");
  const [open, setOpen] = useState(false);
  const [active, setActive] = useState(0);
  const all = useMemo(() => targets(app, sections), [app, sections]);
  const matches = open ? matching(all, text) : [];
  const close = () => {
    setOpen(false);
    setText("");
    setActive(0);
  };
  const select = (target) => {
    close();
    location.hash = target.href;
    document.getElementById("main").focus();
  };
  const pressed = (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      setActive((at) => Math.max(0, Math.min(matches.length - 1, at + (event.key === "ArrowDown" ? 1 : -1))));
    } else if (event.key === "Enter" && matches[active]) select(matches[active]);
    else if (event.key === "Escape") close();
  };
  return html`<div class="jump">
    <input type="search" class="jump-field" role="combobox" aria-label="Go to a topic, flow, view or section" aria-expanded=${open} aria-controls=${id}
      aria-activedescendant=${matches[active] ? `${id}-${active}` : undefined} aria-autocomplete="list" autocomplete="off" spellcheck=${false}
      placeholder="Go to…" value=${text} data-jump data-test="jump"
      onInput=${(event) => (setText(event.target.value), setActive(0), setOpen(true))} onFocus=${() => setOpen(true)} onBlur=${close} onKeyDown=${pressed} />
    ${open && html`<ul class="jump-list" role="listbox" id=${id} aria-label="Matches">
      ${matches.map((entry, index) => html`<li key=${entry.href} id=${`${id}-${index}`} role="option" aria-selected=${index === active} class=${index === active ? "active" : ""}
        onMouseDown=${(event) => (event.preventDefault(), select(entry))}><span>${entry.name}</span><span class="kind">${entry.kind}</span></li>`)}
      ${matches.length === 0 && html`<li class="quiet" role="option" aria-disabled="true">No name contains "${text}".</li>`}
    </ul>`}
  </div>`;
}
