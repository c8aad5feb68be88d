// Types of headrace.js. The types of offline.js are in offline.d.ts.

/** The value of a column. A number that a double cannot represent is a BigInt, or a string if it has a fraction. */
export type Value = null | boolean | number | bigint | string | Value[] | { [name: string]: Value };
export type Row = { [column: string]: Value };
/** The value of a single key column, or an object of all key columns. */
export type Key = string | number | bigint | boolean | { [column: string]: Value };

export interface Position {
  token: string;
  topic: string;
  offsets: { [partition: string]: number };
  generation?: number;
  batch?: number;
  stored?: string;
}

export interface ReadOptions {
  /** Wait for this position token and for earlier writes of this client. With null, read without waiting. */
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
  /** For changes: follow only the first rows, ordered by `sort` or by key. */
  limit?: number;
}

export interface ReadQuery extends Query, ReadOptions {
  same?: boolean;
}

export interface Page<R> {
  view: string;
  rows: R[];
  position: Position;
  moved: boolean;
  next?: string;
}

/** All changes between two positions of the view. If `whole` is true, `rows` are all rows of the query. */
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
  /** The server's Retry-After in milliseconds, or 0. */
  retryAfterMs: number;
  readonly retriable: boolean;
}

export interface Options {
  /** A token, or a function that returns it for each request. The client never stores it or puts it into a URL. */
  token?: string | (() => string | Promise<string>);
  waitMs?: number;
  patienceMs?: number;
  /** Allow sending a token unencrypted to another machine. */
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
  get(key: Key, options?: ReadOptions): Promise<R | null>;
  getWithPosition(key: Key, options?: ReadOptions): Promise<{ row: R | null; position: Position }>;
  page(query?: ReadQuery, next?: string | null): Promise<Page<R>>;
  rows(query?: ReadQuery): AsyncGenerator<R>;
  all(query?: ReadQuery): Promise<{ rows: R[]; position: Position }>;
  changes(
    options?: Query & {
      cursor?: string | null;
      signal?: AbortSignal;
      onstate?: (state: "live" | "offline", error?: unknown) => void;
      /** Maximum rows of a step. More rows are an error. No limit by default. */
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
