// Types of headrace.js and offline.js.

/** A column's value: exact numbers that a double does not hold are texts, whole ones are BigInt. */
export type Value = null | boolean | number | bigint | string | Value[] | { [name: string]: Value };
export type Row = { [column: string]: Value };
/** The text of one column, or an object of several. */
export type Key = string | number | bigint | boolean | { [column: string]: Value };

export interface Position {
  token: string;
  topic: string;
  offsets: { [partition: string]: number };
  generation?: number;
  batch?: number;
  stored?: string;
}

export interface Reading {
  /** A token that is waited for beside what was written here; null to wait for nothing. */
  after?: string | null;
  waitMs?: number;
  signal?: AbortSignal;
}

export interface Query {
  filter?: string;
  prefix?: Key;
  from?: Key;
  to?: Key;
  sort?: string;
  match?: string;
  /** Of changes: only the first rows by `sort`, or by key, as they change. */
  limit?: number;
}

export interface Question extends Query, Reading {
  same?: boolean;
}

export interface Page<R> {
  view: string;
  rows: R[];
  position: Position;
  moved: boolean;
  next?: string;
}

/** A whole step. With `whole`, the rows are all that there are. */
export interface Change<R> {
  whole: boolean;
  rows: R[];
  gone: Row[];
  key: string[];
  position: Position;
  cursor: string;
}

export interface Written {
  topic: string;
  records: { partition: number; offset: number }[];
  token: string;
  request: string;
}

export interface Problem {
  code: string;
  status: number;
  message: string;
  hint: string;
}

export class HeadraceError extends Error implements Problem {
  code: string;
  status: number;
  hint: string;
  position: Position | null;
  requestId: string;
  /** How long the server asks to be left alone; 0 if it does not say. */
  retryAfterMs: number;
  readonly retriable: boolean;
}

export interface Options {
  /** Or what gives one, asked each time; never stored, never in an address. */
  token?: string | (() => string | Promise<string>);
  waitMs?: number;
  patienceMs?: number;
  /** Whether a token may travel over http to another machine. */
  plainText?: boolean;
}

export class Headrace {
  constructor(url?: string, options?: Options);
  readonly base: string;
  views(): Promise<{ view: string; topic: string; key: string[]; store: string }[]>;
  view<R = Row>(name: string): View<R>;
  topic<V = Row>(name: string): Topic<V>;
}

export interface View<R = Row> {
  readonly name: string;
  describe(): Promise<{ view: string; key: string[]; columns: object[]; position: Position | null; state: string }>;
  get(key: Key, options?: Reading): Promise<R | null>;
  look(key: Key, options?: Reading): Promise<{ row: R | null; position: Position }>;
  page(question?: Question, next?: string | null): Promise<Page<R>>;
  rows(question?: Question): AsyncGenerator<R>;
  all(question?: Question): Promise<{ rows: R[]; position: Position }>;
  changes(
    options?: Query & {
      cursor?: string | null;
      signal?: AbortSignal;
      onstate?: (state: "live" | "offline", error?: unknown) => void;
      /** More rows than this in one step are an error; without it there is no limit. */
      rowsMax?: number;
    },
  ): AsyncGenerator<Change<R>>;
}

export interface Topic<V = Row> {
  readonly name: string;
  write(values: V | V[], options?: { request?: string; signal?: AbortSignal }): Promise<Written>;
  delete(keys: Row | Row[], options?: { request?: string; signal?: AbortSignal }): Promise<Written>;
}

export function newRequest(): string;
export function parse(text: string): Value;
export function stringify(value: unknown): string;
