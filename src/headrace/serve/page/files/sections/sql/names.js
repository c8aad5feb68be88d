// Names and types in SQL.

const RESERVED = new Set(
  ("all analyse analyze and any array as asc asymmetric both case cast check collate column constraint create default desc describe distinct do else end except false fetch for foreign" +
    " from grant group having in initially intersect into is lateral leading limit not null offset on only or order pivot placing primary qualify references returning select show some" +
    " summarize symmetric table then to trailing true union unique unpivot using variadic when where window with").split(" "),
);

/** Quote a name if SQL requires it. */
export const quoted = (name) => (/^[a-z_][a-z0-9_]*$/.test(name) && !RESERVED.has(name) ? name : `"${name.replaceAll('"', '""')}"`);

export const isNumberType = (type) => /^(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|DOUBLE|FLOAT|REAL|DECIMAL)/.test(type);
export const isTimeType = (type) => /^(TIMESTAMP|DATE)/.test(type);

/** Parse a time to milliseconds since the epoch. A time without a zone is UTC, as on the server. */
export function momentOf(text) {
  if (typeof text !== "string") return NaN;
  return Date.parse(/T\d/.test(text) && !/(Z|[+-]\d\d:?\d\d)$/.test(text) ? `${text}Z` : text);
}
