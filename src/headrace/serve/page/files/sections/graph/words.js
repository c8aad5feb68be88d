// What a part of the graph says of itself: short on its card, whole for those who listen.

import { bytes, count, duration, exactly, rate } from "/page/parts/numbers.js";

export const KINDS = { source: "Source", topic: "Topic", flow: "Flow", view: "View", group: "Group" };

const BEHIND_S = 5;

/** The last of a dotted name says most. */
export const shortName = (one) => (one.kind === "source" ? one.name.slice(one.name.lastIndexOf(".") + 1) : one.name);

/** How far a reader is behind: in time where that is long, and else in records. */
function behind(lag) {
  if (!lag?.records) return "";
  const long = (lag.seconds ?? 0) >= 1;
  return `${long ? duration(lag.seconds).split(" ").slice(0, 2).join(" ") : count(lag.records)} behind`;
}

/** Of a node, how it is coloured: only what is itself the cause of trouble, never what suffers from it. */
export function toneOf(node) {
  if (!node) return "";
  if (node.state === "failed" || node.state === "stopped" || node.differs) return "bad";
  if (node.cause) return "warn";
  return "";
}

/** The second line of a card. */
export function summary(kind, node) {
  if (!node) return "";
  if (kind === "source") return rate(node.per_s);
  if (kind === "topic") return node.state === "not there" ? "not there yet" : `${rate(node.per_s)} · ${count(node.records ?? node.end)}`;
  const usual = node.state === "running" || node.state === "following";
  const speed = kind === "flow" ? node.per_s_in : node.per_s;
  const state = usual ? "" : `${node.state}`;
  const work = node.state === "on read" || node.state === "failed" ? "" : rate(speed);
  return [state, work, lateness(node.lag)].filter(Boolean).join(" · ");
}

export function edgeRate(edge) {
  return edge && edge.per_s !== null && edge.per_s !== undefined ? rate(edge.per_s) : "";
}

/** Beside a line there is little room, and the legend says what it is. */
export const lineLag = (lag) => lateness(lag).replace(/ behind$/, "");

/** Beside a line, and on a card: a moment's worth of records is only on its way, and no word. */
export const lateness = (lag) => ((lag?.seconds ?? 1) >= 1 ? behind(lag) : "");

export const isFarBehind = (edge) => (edge?.lag?.seconds ?? 0) >= BEHIND_S && edge.lag.records > 0;

export function spoken(one, node) {
  const parts = [`${KINDS[one.kind]} ${one.name}`];
  if (one.about) parts.push(one.about);
  if (!node) return parts.join(", ");
  if (node.state) parts.push(node.state);
  if (node.cause) parts.push("the bottleneck");
  return `${parts.join(", ")}. ${summary(one.kind, node)}`;
}

/** Rows of facts for the panel. */
export function facts(kind, node) {
  if (!node) return [];
  const lag = node.lag?.records ? [`${exactly(node.lag.records)} records`, node.lag.bytes !== null && bytes(node.lag.bytes), node.lag.seconds !== null && `oldest ${duration(node.lag.seconds)}`].filter(Boolean).join(", ") : node.lag?.records === 0 ? "nothing to read" : "not known";
  const rows = {
    source: [["Writes", rate(node.per_s)]],
    topic: [["Arriving", rate(node.per_s)], ["Records", exactly(node.records ?? node.end)], ["Size", bytes(node.bytes)], ["In the log as", node.log]],
    flow: [["Reads", rate(node.per_s_in)], ["Writes", rate(node.per_s_out)], ["To read", lag], ["Last batch took", node.latency_ms === null ? null : duration(node.latency_ms / 1000)], ["State kept", node.state_rows ? `${count(node.state_rows)} rows, ${bytes(node.state_bytes)}` : "none"], ["Too late", count(node.late)], ["Dead letters", count(node.dead)]],
    view: [["Applies", rate(node.per_s)], ["To read", lag], ["Dead letters", count(node.dead)], ["Last proof", node.verified]],
  }[kind];
  const loss = node.time_to_loss_s !== null && node.time_to_loss_s !== undefined ? [["First loss in", duration(node.time_to_loss_s)]] : [];
  return [...(rows ?? []), ...loss].filter(([, value]) => value !== null && value !== undefined && value !== "");
}
