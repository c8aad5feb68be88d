// The section that shows the app as a graph of sources, topics, flows and views, and marks the bottleneck.

import { html, useCallback, useEffect, useMemo, useRef, useState } from "/page/vendor/ui.js";
import { address } from "/page/address.js";
import { Button, Empty, ProblemBox } from "/page/parts/box.js";
import { rate } from "/page/parts/numbers.js";
import { useFetched } from "/page/requests.js";
import { Canvas } from "/page/sections/graph/canvas.js";
import { Card, Line } from "/page/sections/graph/card.js";
import { filterNodes, foldGroups, groupsOf, MANY, withoutSources } from "/page/sections/graph/groups.js";
import { layOut } from "/page/sections/graph/layout.js";
import { NodePanel } from "/page/sections/graph/panel.js";
import { edgeRate, isFarBehind, lineLag, shortName, describe, summary, toneOf } from "/page/sections/graph/text.js";

/** Return the worst colour of the nodes in a group, and their total throughput. */
function groupSummary(ids, nodes) {
  const known = ids.map((id) => nodes?.[id]).filter(Boolean);
  const tones = known.map(toneOf);
  const tone = tones.includes("bad") ? "bad" : tones.includes("warn") ? "warn" : "";
  const rates = known.map((node) => node.per_s_in).filter((value) => value !== null && value !== undefined);
  const total = rates.length > 0 ? rates.reduce((sum, value) => sum + value, 0) : null;
  const wrong = tones.filter(Boolean).length;
  return { tone, second: `${rate(total)}${wrong > 0 ? ` · ${wrong} bottlenecks` : ""}` };
}

const Legend = ({ many }) => html`<ul class="graph-legend" aria-label="Legend">
  <li><span class="legend-card warn"></span>bottleneck</li>
  <li><span class="legend-card bad"></span>stopped</li>
  <li class="wide-only"><span class="legend-line"></span>records per second, and the lag of the reader</li>
  ${many && html`<li class="wide-only"><span class="legend-fed">→</span>written from outside</li>`}
</ul>`;

/** The width of the drawing, without the margins of the section. */
const roomWidth = () => (document.getElementById("main")?.clientWidth ?? innerWidth) - 42;

function View({ query, now, go, api }) {
  const [graph, problem] = useFetched(api, "/v1/app");
  const [words, setWords] = useState("");
  const [opened, setOpened] = useState(() => new Set());
  const canvas = useRef(null);
  const chosen = graph?.nodes.find((node) => node.id === query.node);

  const many = (graph?.nodes.length ?? 0) > MANY;
  const whole = useMemo(() => (graph ? (many ? withoutSources(graph) : graph) : { nodes: [], edges: [] }), [graph, many]);
  const groups = useMemo(() => groupsOf(whole), [whole]);
  const causes = useMemo(() => (graph && now ? graph.nodes.filter((node) => toneOf(now.nodes?.[node.id])).map((node) => node.id) : []), [graph, now]);

  // Unfold the groups that contain the selected node or a bottleneck.
  const open = useMemo(() => {
    const ids = new Set(opened);
    for (const group of groups) if (group.ids.includes(query.node) || causes.some((id) => group.ids.includes(id))) ids.add(group.id);
    return ids;
  }, [opened, groups, query.node, causes.join("\n")]);
  const openKey = [...open].sort().join("\n");
  const { drawn, hits } = useMemo(() => {
    const { graph: near, hits } = filterNodes(whole, words);
    return { drawn: words.trim() ? near : foldGroups(whole, groups, open), hits };
  }, [whole, groups, openKey, words]);
  const layout = useMemo(() => layOut(drawn, roomWidth()), [drawn]);
  const layoutRef = useRef(layout);
  layoutRef.current = layout;

  const show = useCallback((event) => {
    const box = layoutRef.current.nodes.get(event.currentTarget.dataset.id);
    // Move only for keyboard focus, because the mouse already points at a visible card.
    if (box && event.currentTarget.matches(":focus-visible")) canvas.current?.show(box);
  }, []);
  useEffect(() => {
    if (query.group && groups.some((group) => group.id === query.group)) {
      setOpened((before) => new Set(before).add(query.group));
      go("graph", [], { node: query.node }, { replace: true });
    }
  }, [query.group, groups]);

  if (problem) return html`<${ProblemBox} problem=${problem} />`;
  if (!graph) return html`<p class="quiet">Loading the graph…</p>`;
  if (graph.nodes.length === 0) return html`<${Empty} title="The app is empty" text="The app declares no topics, flows or views yet." />`;

  const cards = drawn.nodes.map((entry) => {
    const node = now?.nodes?.[entry.id];
    const box = layout.nodes.get(entry.id);
    const group = entry.kind === "group";
    const text = group ? groupSummary(entry.ids, now?.nodes) : { tone: toneOf(node), second: summary(entry.kind, node) };
    const label = group ? `Group ${entry.name}: ${entry.about}. ${text.second}. Opens the group.` : describe(entry, node);
    return { ...entry, ...box, ...text, label, third: group ? text.second : "", second: group ? entry.about : text.second };
  });
  const order = [...cards].sort((a, b) => a.x - b.x || a.y - b.y);
  const cause = causes[0];
  const foldable = groups.filter((group) => group.ids.length > 1);

  return html`<h1 class="unseen">The app as a graph</h1>
    <div class="graph-tools">
      <input type="search" class="input" data-find data-test="graph-find" aria-label="Filter parts by name" placeholder="Show only…  ( / )" value=${words} onInput=${(event) => setWords(event.target.value)} />
      <span class="quiet" data-test="graph-count">${hits ? `${hits.size} of ${graph.nodes.filter((node) => node.kind !== "source").length}` : many ? `${graph.nodes.length} parts` : ""}</span>
      ${cause && html`<a class="button graph-to-cause" href=${address("graph", [], { node: cause })} data-test="graph-cause">${causes.length === 1 ? "Bottleneck:" : `${causes.length} bottlenecks, first:`} ${graph.nodes.find((node) => node.id === cause)?.name}</a>`}
      <span class="graph-buttons">
        ${foldable.length > 0 && !words && html`<${Button} onClick=${() => setOpened(new Set(foldable.every((group) => open.has(group.id)) ? [] : foldable.map((group) => group.id)))} data-test="graph-fold">${foldable.every((group) => open.has(group.id)) ? "Fold groups" : "Unfold all"}<//>`}
        <${Button} onClick=${() => canvas.current.zoom(0.8)} aria-label="Smaller" title="Smaller (-)">−<//>
        <${Button} onClick=${() => canvas.current.zoom(1.25)} aria-label="Larger" title="Larger (+)">+<//>
        <${Button} onClick=${() => canvas.current.fit()} title="Fit all (0)" data-test="graph-fit">Fit<//>
      </span>
    </div>
    <div class=${`graph-area ${chosen ? "with-panel" : ""}`}>
      <div class="graph-room">
        ${drawn.nodes.length === 0
          ? html`<${Empty} title="No match" text=${`No topic, flow or view has "${words}" in its name.`} />`
          : html`<${Canvas} size=${layout} boxes=${cards} hold=${canvas} first=${layout.nodes.get(query.node ?? causes[0])} label=${`The graph of ${graph.app}: ${graph.nodes.length} parts`} onBackground=${() => query.node && go("graph")}>
              ${layout.edges.map((line) => {
                const edge = now?.edges?.[line.key];
                const faded = hits !== null && !hits.has(line.from) && !hits.has(line.to);
                const silent = line.from.startsWith("source:");
                return html`<${Line} key=${line.key} id=${line.key} path=${line.path} x=${line.label.x} y=${line.label.y} rate=${silent ? "" : edgeRate(edge)} lag=${lineLag(edge?.lag)} far=${isFarBehind(edge) && Boolean(now?.nodes?.[line.to]?.cause)} faded=${faded} />`;
              })}
              ${order.map((card) => html`<${Card} key=${card.id} id=${card.id} kind=${card.kind} name=${shortName(card)} href=${card.kind === "group" ? address("graph", [], { group: card.id }) : address("graph", [], { node: card.id })} second=${card.second} third=${card.third} tone=${card.tone} mark=${card.tone !== ""} label=${card.label} x=${card.x} y=${card.y} width=${card.width} height=${card.height} selected=${card.id === query.node} faded=${hits !== null && !hits.has(card.id)} fed=${Boolean(card.fed)} onShow=${show} />`)}
            <//>`}
        <${Legend} many=${many} />
      </div>
      ${chosen && html`<${NodePanel} part=${chosen} graph=${graph} now=${now} api=${api} onClose=${() => go("graph")} />`}
    </div>`;
}

export default {
  id: "graph",
  title: "Graph",
  key: "g",
  icon: html`<svg viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.4"><rect x="1.5" y="6" width="4" height="4" rx="1" /><rect x="10.5" y="1.5" width="4" height="4" rx="1" /><rect x="10.5" y="10.5" width="4" height="4" rx="1" /><path d="M5.5 8h2.5M8 3.5v9M8 3.5h2.5M8 12.5h2.5" /></svg>`,
  View,
};
