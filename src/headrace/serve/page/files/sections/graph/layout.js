// Computes the layout. Each pipeline runs from left to right, as its data does. Separate pipelines are packed side by side.

import { Graph, layout } from "/page/vendor/dagre.js";
import { pipelines } from "/page/sections/graph/groups.js";

/** From spacious to dense: the widths of cards, sources and labels, and the gap between columns. */
const SPACINGS = [
  { card: 176, source: 150, label: 62, gap: 20 },
  { card: 164, source: 112, label: 56, gap: 14 },
  { card: 150, source: 96, label: 54, gap: 8 },
];
const CARD_HEIGHT = 48;
const SOURCE_HEIGHT = 38;
/** A label has two lines: the rate above the line, the lag below it. */
const LABEL_HEIGHT = 36;
const GROUP = [232, 66];
/** Use a denser spacing if the drawing would otherwise be scaled below this. */
const COMFORTABLE = 0.72;
const MARGIN = 20;
const GAP = 34;
/** A graph of up to this many nodes gets wider gaps, and still fits on a screen. */
const WIDE_GAPS_NODES_MAX = 24;
const GAP_SIDE = 70;
const SHAPE = 1.7;

/** Return {nodes: Map id → {x, y, width, height}, edges: [{key, from, to, path, label: {x, y}}], width, height} for a room of this width. */
export function layOut({ nodes, edges }, room = Infinity) {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const partOf = new Map();
  const parts = pipelines(nodes, edges).map((ids, at) => {
    for (const id of ids) partOf.set(id, at);
    return { nodes: ids.map((id) => byId.get(id)), edges: [] };
  });
  for (const edge of edges) parts[partOf.get(edge.from)].edges.push(edge);
  let drawing;
  for (const spacing of SPACINGS) {
    drawing = pack(parts.map((part) => layOutPart(part, spacing)));
    if (drawing.width * COMFORTABLE <= room) break;
  }
  return drawing;
}

function sizeOf(kind, spacing) {
  if (kind === "group") return GROUP;
  return kind === "source" ? [spacing.source, SOURCE_HEIGHT] : [spacing.card, CARD_HEIGHT];
}

function layOutPart({ nodes, edges }, spacing) {
  const graph = new Graph();
  graph.setGraph({ rankdir: "LR", nodesep: nodes.length > WIDE_GAPS_NODES_MAX ? 14 : 34, edgesep: 8, ranksep: spacing.gap });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of nodes) {
    const [width, height] = sizeOf(node.kind, spacing);
    graph.setNode(node.id, { width, height });
  }
  for (const edge of edges) {
    const hasLabel = !edge.from.startsWith("source:");
    graph.setEdge(edge.from, edge.to, { width: hasLabel ? spacing.label : 4, height: hasLabel ? LABEL_HEIGHT : 4, labelpos: "c" });
  }
  layout(graph);
  const { width, height } = graph.graph();
  return { graph, width, height };
}

/** Pack the parts in rows, so that the drawing has about the shape of a screen. */
function pack(parts) {
  const area = parts.reduce((sum, part) => sum + (part.width + GAP_SIDE) * (part.height + GAP), 0);
  const wide = Math.max(Math.sqrt(area * SHAPE), ...parts.map((part) => part.width));
  const result = { nodes: new Map(), edges: [], width: 1, height: 1 };
  let [x, y, high] = [0, 0, 0];
  for (const part of parts) {
    if (x > 0 && x + part.width > wide) [x, y, high] = [0, y + high + GAP, 0];
    addPart(result, part.graph, x + MARGIN, y + MARGIN);
    x += part.width + GAP_SIDE;
    high = Math.max(high, part.height);
    result.width = Math.max(result.width, x - GAP_SIDE + 2 * MARGIN);
    result.height = Math.max(result.height, y + high + 2 * MARGIN);
  }
  return result;
}

function addPart(result, graph, left, top) {
  for (const id of graph.nodes()) {
    const { x, y, width, height } = graph.node(id);
    result.nodes.set(id, { x: left + x - width / 2, y: top + y - height / 2, width, height });
  }
  for (const { v, w } of graph.edges()) {
    const { points, x, y } = graph.edge(v, w);
    const moved = points.map((point) => ({ x: point.x + left, y: point.y + top }));
    result.edges.push({ key: `${v}>${w}`, from: v, to: w, path: curve(ends(moved, result.nodes.get(v), result.nodes.get(w))), label: { x: x + left, y: y + top } });
  }
}

/** Lines leave on the right side and arrive on the left side of a card. */
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
