// The panel of the selected node, with facts, a chart, its neighbours, and links.

import { html, useMemo } from "/page/vendor/ui.js";
import { address, linkTo } from "/page/address.js";
import { useHistory } from "/page/history.js";
import { Chart } from "/page/parts/chart.js";
import { State } from "/page/parts/box.js";
import { facts, KINDS, toneOf } from "/page/sections/graph/text.js";

const NEXT_MAX = 30;

const SERIES = {
  source: [["per_s", "Written"]],
  topic: [["per_s", "Arriving"]],
  flow: [["per_s_in", "Read"], ["per_s_out", "Written"]],
  view: [["per_s", "Applied"]],
};

const Next = ({ title, ids, nodes }) =>
  ids.length > 0 &&
  html`<div class="panel-next"><h3>${title}</h3><ul>
    ${ids.slice(0, NEXT_MAX).map((id) => html`<li key=${id}><a href=${address("graph", [], { node: id })}>${nodes.get(id)?.name ?? id}</a> <span class="quiet">${nodes.get(id)?.kind}</span></li>`)}
    ${ids.length > NEXT_MAX && html`<li class="quiet">and ${ids.length - NEXT_MAX} more</li>`}
  </ul></div>`;

const Trend = ({ part, now, api }) => {
  const history = useHistory(api, part.id, now);
  const series = useMemo(() => SERIES[part.kind].map(([field, label]) => ({ label, unit: "/s", points: history.points(field) })), [history, part.kind]);
  return html`<${Chart} title="Last 15 minutes" series=${series} height=${120} />`;
};

export function NodePanel({ part, graph, now, api, onClose }) {
  const nodes = useMemo(() => new Map(graph.nodes.map((node) => [node.id, node])), [graph]);
  const node = now?.nodes?.[part.id];
  const tone = toneOf(node);
  const link = linkTo(part.section_path);
  const section = { topic: "Open the topic", source: "Open the topic", flow: "Open the flow", view: "Open the view" }[part.kind];
  return html`<aside class="graph-panel" aria-label=${`${KINDS[part.kind]} ${part.name}`} data-test="graph-panel">
    <header><div><span class="quiet">${KINDS[part.kind]}</span><h2>${part.name}</h2></div><button type="button" class="icon-button" aria-label="Close" onClick=${onClose}>✕</button></header>
    ${part.about && html`<p class="quiet">${part.about}</p>`}
    ${node?.state && html`<p><${State} state=${node.state} kind=${tone || undefined} /></p>`}
    ${node?.cause && html`<p class="graph-cause">This is the bottleneck: it has ended, or its input arrives faster than it is read. The parts that follow only wait for it.</p>`}
    ${node?.why && html`<p>${node.why}</p>`}
    <dl class="facts">${facts(part.kind, node).map(([name, value]) => html`<dt key=${`t${name}`}>${name}</dt><dd key=${`d${name}`}>${value}</dd>`)}</dl>
    <${Trend} key=${part.id} part=${part} now=${now} api=${api} />
    <${Next} title="From" ids=${graph.edges.filter((edge) => edge.to === part.id).map((edge) => edge.from)} nodes=${nodes} />
    <${Next} title="To" ids=${graph.edges.filter((edge) => edge.from === part.id).map((edge) => edge.to)} nodes=${nodes} />
    ${link && html`<a class="button primary" href=${link} data-test="graph-open">${section}</a>`}
  </aside>`;
}
