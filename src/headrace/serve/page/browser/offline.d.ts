import type { Headrace, Key, Position, Problem, Query, Row, Written } from "./headrace.js";

export interface Limits {
  /** Maximum rows of a copy. */
  rowsMax?: number;
  writesMax?: number;
  bytesMax?: number;
  bodyBytesMax?: number;
}

/** Events: `fault` for unexpected errors. */
export class Offline extends EventTarget {
  static open(headrace: Headrace, options?: { name?: string } & Limits): Promise<Offline>;
  readonly outbox: Outbox;
  copy<R = Row>(view: string, query?: Query): Promise<Copy<R>>;
  drop(view: string, query?: Query): Promise<void>;
  retry(): void;
  close(): void;
  erase(): Promise<void>;
}

/** Events: `change`, `state`. */
export interface Copy<R = Row> extends EventTarget {
  readonly state: "live" | "offline" | "failed";
  readonly error: Problem | null;
  readonly position: Position | null;
  get(key: Key): Promise<R | undefined>;
  all(): Promise<{ rows: R[]; position: Position | null }>;
}

export interface PendingWrite {
  seq: number;
  request: string;
  topic: string;
  body: string;
  bytes: number;
  added: number;
  tried: number | null;
}

/** Events: `change`, `state`, `sent` (detail: Written), `refused` (detail: PendingWrite & { problem }). */
export interface Outbox extends EventTarget {
  readonly state: "idle" | "sending" | "waiting" | "blocked";
  readonly error: Problem | null;
  write(topic: string, values: object | object[], request?: string): Promise<{ seq: number; request: string }>;
  delete(topic: string, keys: object | object[], request?: string): Promise<{ seq: number; request: string }>;
  pending(): Promise<PendingWrite[]>;
  refused(): Promise<(PendingWrite & { problem: Problem })[]>;
  discard(seq: number): Promise<void>;
  retry(): void;
  drained(): Promise<void>;
}

export type { Written };
