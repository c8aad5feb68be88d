// To anything by its name: a field with a list, by mouse or by keys.

import { html, useId, useMemo, useState } from "/page/vendor/ui.js";
import { address, linkTo } from "/page/address.js";

const FOUND_MAX = 12;

function places(app, sections) {
  const found = sections.map((one) => ({ name: one.title, kind: "section", href: address(one.id) }));
  for (const node of app?.nodes ?? []) {
    if (node.kind === "source") continue;
    const section = { topic: "topics", flow: "flows", view: "views" }[node.kind];
    found.push({ name: node.name, kind: node.kind, href: linkTo(node.section_path) || address(section, [node.name]) });
  }
  return found;
}

function matching(all, text) {
  const wanted = text.trim().toLowerCase();
  if (wanted === "") return all.slice(0, FOUND_MAX);
  const rank = (one) => {
    const at = one.name.toLowerCase().indexOf(wanted);
    return at < 0 ? -1 : at === 0 ? 0 : 1;
  };
  const ranked = all.map((one) => [rank(one), one]).filter(([at]) => at >= 0);
  return ranked.sort(([a], [b]) => a - b).slice(0, FOUND_MAX).map(([, one]) => one);
}

export function Jump({ app, sections }) {
  const id = useId();
  const [text, setText] = useState("");
  const [open, setOpen] = useState(false);
  const [active, setActive] = useState(0);
  const all = useMemo(() => places(app, sections), [app, sections]);
  const found = open ? matching(all, text) : [];
  const leave = () => {
    setOpen(false);
    setText("");
    setActive(0);
  };
  const take = (one) => {
    leave();
    location.hash = one.href;
    document.getElementById("main").focus();
  };
  const pressed = (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      setActive((at) => Math.max(0, Math.min(found.length - 1, at + (event.key === "ArrowDown" ? 1 : -1))));
    } else if (event.key === "Enter" && found[active]) take(found[active]);
    else if (event.key === "Escape") leave();
  };
  return html`<div class="jump">
    <input type="search" class="jump-field" role="combobox" aria-label="Go to a topic, flow, view or section" aria-expanded=${open} aria-controls=${id}
      aria-activedescendant=${found[active] ? `${id}-${active}` : undefined} aria-autocomplete="list" autocomplete="off" spellcheck=${false}
      placeholder="Go to…" value=${text} data-jump data-test="jump"
      onInput=${(event) => (setText(event.target.value), setActive(0), setOpen(true))} onFocus=${() => setOpen(true)} onBlur=${leave} onKeyDown=${pressed} />
    ${open && html`<ul class="jump-list" role="listbox" id=${id} aria-label="Places">
      ${found.map((one, index) => html`<li key=${one.href} id=${`${id}-${index}`} role="option" aria-selected=${index === active} class=${index === active ? "active" : ""}
        onMouseDown=${(event) => (event.preventDefault(), take(one))}><span>${one.name}</span><span class="kind">${one.kind}</span></li>`)}
      ${found.length === 0 && html`<li class="quiet" role="option" aria-disabled="true">Nothing has "${text}" in its name.</li>`}
    </ul>`}
  </div>`;
}
