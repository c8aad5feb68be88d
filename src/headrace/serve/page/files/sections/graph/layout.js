// Where the parts are drawn: left to right, as data moves; what does not hang together stands beside each other.

import { Graph, layout } from "/page/vendor/dagre.js";
import { pipelines } from "/page/sections/graph/folding.js";

const SIZES = { source: [150, 40], topic: [176, 48], flow: [176, 48], view: [176, 48], group: [232, 66] };
const LABEL = [62, 26];
const MARGIN = 20;
const GAP = 34;
/** Up to so many parts are a little apart: they fit a screen so too. */
const ROOMY = 24;
const GAP_SIDE = 70;
const SHAPE = 1.7;

/** {nodes: Map id → {x, y, width, height}, edges: [{key, from, to, path, label: {x, y}}], width, height} */
export function placed({ nodes, edges }) {
  const byId = new Map(nodes.map((one) => [one.id, one]));
  const partOf = new Map();
  const parts = pipelines(nodes, edges).map((ids, at) => {
    for (const id of ids) partOf.set(id, at);
    return { nodes: ids.map((id) => byId.get(id)), edges: [] };
  });
  for (const one of edges) parts[partOf.get(one.from)].edges.push(one);
  return packed(parts.map(laidOut));
}

function laidOut({ nodes, edges }) {
  const graph = new Graph();
  graph.setGraph({ rankdir: "LR", nodesep: nodes.length > ROOMY ? 14 : 34, edgesep: 8, ranksep: 20 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const one of nodes) {
    const [width, height] = SIZES[one.kind];
    graph.setNode(one.id, { width, height });
  }
  for (const one of edges) {
    const written = !one.from.startsWith("source:");
    graph.setEdge(one.from, one.to, { width: written ? LABEL[0] : 4, height: written ? LABEL[1] : 4, labelpos: "c" });
  }
  layout(graph);
  const { width, height } = graph.graph();
  return { graph, width, height };
}

/** In rows, as books on shelves: the whole gets about the shape of a screen. */
function packed(parts) {
  const area = parts.reduce((sum, one) => sum + (one.width + GAP_SIDE) * (one.height + GAP), 0);
  const wide = Math.max(Math.sqrt(area * SHAPE), ...parts.map((one) => one.width));
  const found = { nodes: new Map(), edges: [], width: 1, height: 1 };
  let [x, y, high] = [0, 0, 0];
  for (const part of parts) {
    if (x > 0 && x + part.width > wide) [x, y, high] = [0, y + high + GAP, 0];
    take(found, part.graph, x + MARGIN, y + MARGIN);
    x += part.width + GAP_SIDE;
    high = Math.max(high, part.height);
    found.width = Math.max(found.width, x - GAP_SIDE + 2 * MARGIN);
    found.height = Math.max(found.height, y + high + 2 * MARGIN);
  }
  return found;
}

function take(found, graph, left, top) {
  for (const id of graph.nodes()) {
    const { x, y, width, height } = graph.node(id);
    found.nodes.set(id, { x: left + x - width / 2, y: top + y - height / 2, width, height });
  }
  for (const { v, w } of graph.edges()) {
    const { points, x, y } = graph.edge(v, w);
    const moved = points.map((one) => ({ x: one.x + left, y: one.y + top }));
    found.edges.push({ key: `${v}>${w}`, from: v, to: w, path: curve(ends(moved, found.nodes.get(v), found.nodes.get(w))), label: { x: x + left, y: y + top } });
  }
}

/** Lines leave at the right side and arrive at the left one, wherever the layout lets them touch. */
function ends(points, from, to) {
  const begin = { x: from.x + from.width, y: from.y + from.height / 2 };
  const end = { x: to.x, y: to.y + to.height / 2 };
  return end.x > begin.x ? [begin, ...points.slice(1, -1), end] : points;
}

function curve(points) {
  const round = (n) => Math.round(n * 10) / 10;
  let path = `M${round(points[0].x)},${round(points[0].y)}`;
  for (let at = 1; at < points.length; at += 1) {
    const [a, b] = [points[at - 1], points[at]];
    const middle = round((a.x + b.x) / 2);
    path += `C${middle},${round(a.y)} ${middle},${round(b.y)} ${round(b.x)},${round(b.y)}`;
  }
  return path;
}
