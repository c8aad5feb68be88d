// The app as a graph: where data comes from, what is made of it, and where it is held up.

import { html, useCallback, useEffect, useMemo, useRef, useState } from "/page/vendor/ui.js";
import { address } from "/page/address.js";
import { Button, Empty, ProblemBox } from "/page/parts/box.js";
import { rate } from "/page/parts/numbers.js";
import { useOnce } from "/page/asked.js";
import { Canvas } from "/page/sections/graph/canvas.js";
import { Card, Line } from "/page/sections/graph/card.js";
import { around, folded, groupsOf, MANY, withoutSources } from "/page/sections/graph/folding.js";
import { placed } from "/page/sections/graph/layout.js";
import { NodePanel } from "/page/sections/graph/panel.js";
import { edgeRate, isFarBehind, lineLag, shortName, spoken, summary, toneOf } from "/page/sections/graph/words.js";

/** What a group says: the worst of its parts, and what moves through it. */
function groupSummary(ids, nodes) {
  const some = ids.map((id) => nodes?.[id]).filter(Boolean);
  const tones = some.map(toneOf);
  const tone = tones.includes("bad") ? "bad" : tones.includes("warn") ? "warn" : "";
  const told = some.map((one) => one.per_s_in).filter((one) => one !== null && one !== undefined);
  const work = told.length > 0 ? told.reduce((sum, one) => sum + one, 0) : null;
  const wrong = tones.filter(Boolean).length;
  return { tone, second: `${rate(work)}${wrong > 0 ? ` · ${wrong} held up` : ""}` };
}

const Legend = ({ many }) => html`<ul class="graph-legend" aria-label="Legend">
  <li><span class="legend-card warn"></span>where it is held up</li>
  <li><span class="legend-card bad"></span>ended</li>
  <li class="wide-only"><span class="legend-line"></span>records per second, and how far their reader is behind</li>
  ${many && html`<li class="wide-only"><span class="legend-fed">→</span>written from outside</li>`}
</ul>`;

function View({ query, now, go, api }) {
  const [graph, problem] = useOnce(api, "/v1/app");
  const [words, setWords] = useState("");
  const [opened, setOpened] = useState(() => new Set());
  const canvas = useRef(null);
  const chosen = graph?.nodes.find((one) => one.id === query.node);

  const many = (graph?.nodes.length ?? 0) > MANY;
  const whole = useMemo(() => (graph ? (many ? withoutSources(graph) : graph) : { nodes: [], edges: [] }), [graph, many]);
  const groups = useMemo(() => groupsOf(whole), [whole]);
  const causes = useMemo(() => (graph && now ? graph.nodes.filter((one) => toneOf(now.nodes?.[one.id])).map((one) => one.id) : []), [graph, now]);

  // What is chosen or is the cause is never hidden in a group.
  const open = useMemo(() => {
    const found = new Set(opened);
    for (const group of groups) if (group.ids.includes(query.node) || causes.some((id) => group.ids.includes(id))) found.add(group.id);
    return found;
  }, [opened, groups, query.node, causes.join("\n")]);
  const openKey = [...open].sort().join("\n");
  const { drawn, hits } = useMemo(() => {
    const { graph: near, hits } = around(whole, words);
    return { drawn: words.trim() ? near : folded(whole, groups, open), hits };
  }, [whole, groups, openKey, words]);
  const layout = useMemo(() => placed(drawn), [drawn]);
  const placeOf = useRef(layout);
  placeOf.current = layout;

  const show = useCallback((event) => {
    const box = placeOf.current.nodes.get(event.currentTarget.dataset.id);
    // Only for keys: what the mouse points at is in sight.
    if (box && event.currentTarget.matches(":focus-visible")) canvas.current?.show(box);
  }, []);
  useEffect(() => {
    if (query.group && groups.some((one) => one.id === query.group)) {
      setOpened((before) => new Set(before).add(query.group));
      go("graph", [], { node: query.node }, { replace: true });
    }
  }, [query.group, groups]);

  if (problem) return html`<${ProblemBox} problem=${problem} />`;
  if (!graph) return html`<p class="quiet">Asking for the graph…</p>`;
  if (graph.nodes.length === 0) return html`<${Empty} title="The app is empty" text="It declares no topic, flow or view yet." />`;

  const cards = drawn.nodes.map((one) => {
    const node = now?.nodes?.[one.id];
    const box = layout.nodes.get(one.id);
    const group = one.kind === "group";
    const told = group ? groupSummary(one.ids, now?.nodes) : { tone: toneOf(node), second: summary(one.kind, node) };
    const label = group ? `Group ${one.name}: ${one.about}. ${told.second}. Opens it.` : spoken(one, node);
    return { ...one, ...box, ...told, label, third: group ? told.second : "", second: group ? one.about : told.second };
  });
  const order = [...cards].sort((a, b) => a.x - b.x || a.y - b.y);
  const cause = causes[0];
  const foldable = groups.filter((one) => one.ids.length > 1);

  return html`<h1 class="unseen">The app as a graph</h1>
    <div class="graph-tools">
      <input type="search" class="input" data-find data-test="graph-find" aria-label="Show only what has this in its name" placeholder="Show only…  ( / )" value=${words} onInput=${(event) => setWords(event.target.value)} />
      <span class="quiet" data-test="graph-count">${hits ? `${hits.size} of ${graph.nodes.filter((one) => one.kind !== "source").length}` : many ? `${graph.nodes.length} parts` : ""}</span>
      ${cause && html`<a class="button graph-to-cause" href=${address("graph", [], { node: cause })} data-test="graph-cause">${causes.length === 1 ? "Held up at" : `${causes.length} held up, first`} ${graph.nodes.find((one) => one.id === cause)?.name}</a>`}
      <span class="graph-buttons">
        ${foldable.length > 0 && !words && html`<${Button} onClick=${() => setOpened(new Set(foldable.every((one) => open.has(one.id)) ? [] : foldable.map((one) => one.id)))} data-test="graph-fold">${foldable.every((one) => open.has(one.id)) ? "Fold groups" : "Unfold all"}<//>`}
        <${Button} onClick=${() => canvas.current.zoom(0.8)} aria-label="Smaller" title="Smaller (-)">−<//>
        <${Button} onClick=${() => canvas.current.zoom(1.25)} aria-label="Larger" title="Larger (+)">+<//>
        <${Button} onClick=${() => canvas.current.fit()} title="All of it (0)" data-test="graph-fit">Fit<//>
      </span>
    </div>
    <div class=${`graph-area ${chosen ? "with-panel" : ""}`}>
      <div class="graph-room">
        ${drawn.nodes.length === 0
          ? html`<${Empty} title="Nothing has that name" text=${`No topic, flow or view has "${words}" in its name.`} />`
          : html`<${Canvas} size=${layout} boxes=${cards} hold=${canvas} first=${layout.nodes.get(query.node ?? causes[0])} label=${`The graph of ${graph.app}: ${graph.nodes.length} parts`} onBackground=${() => query.node && go("graph")}>
              ${layout.edges.map((one) => {
                const edge = now?.edges?.[one.key];
                const faded = hits !== null && !hits.has(one.from) && !hits.has(one.to);
                const silent = one.from.startsWith("source:");
                return html`<${Line} key=${one.key} id=${one.key} path=${one.path} x=${one.label.x} y=${one.label.y} rate=${silent ? "" : edgeRate(edge)} lag=${lineLag(edge?.lag)} far=${isFarBehind(edge) && Boolean(now?.nodes?.[one.to]?.cause)} faded=${faded} />`;
              })}
              ${order.map((one) => html`<${Card} key=${one.id} id=${one.id} kind=${one.kind} name=${shortName(one)} href=${one.kind === "group" ? address("graph", [], { group: one.id }) : address("graph", [], { node: one.id })} second=${one.second} third=${one.third} tone=${one.tone} mark=${one.tone !== ""} label=${one.label} x=${one.x} y=${one.y} width=${one.width} height=${one.height} selected=${one.id === query.node} faded=${hits !== null && !hits.has(one.id)} fed=${Boolean(one.fed)} onShow=${show} />`)}
            <//>`}
        <${Legend} many=${many} />
      </div>
      ${chosen && html`<${NodePanel} one=${chosen} graph=${graph} now=${now} api=${api} onClose=${() => go("graph")} />`}
    </div>`;
}

export default {
  id: "graph",
  title: "Graph",
  key: "g",
  icon: html`<svg viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.4"><rect x="1.5" y="6" width="4" height="4" rx="1" /><rect x="10.5" y="1.5" width="4" height="4" rx="1" /><rect x="10.5" y="10.5" width="4" height="4" rx="1" /><path d="M5.5 8h2.5M8 3.5v9M8 3.5h2.5M8 12.5h2.5" /></svg>`,
  View,
};
