// Wraps IndexedDB in promises, and creates its stores.

const VERSION = 1;

/** Return a promise for the result of an IndexedDB request. */
export const resultOf = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

export const completionOf = (transaction) =>
  new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error ?? new Error("the transaction was aborted"));
  });

export function openDatabase(name) {
  const request = indexedDB.open(name, VERSION);
  request.onupgradeneeded = () => {
    const database = request.result;
    database.createObjectStore("copies", { keyPath: "name" });
    database.createObjectStore("rows"); // [copy, text of the key] -> row
    database.createObjectStore("outbox", { keyPath: "seq", autoIncrement: true });
    database.createObjectStore("refused", { keyPath: "seq" });
    database.createObjectStore("written"); // [topic, partition] -> token
    database.createObjectStore("sums");
  };
  return resultOf(request);
}

/** Convert an error to plain data, which can be sent to other tabs and stored. */
export const problemOf = (error) =>
  error ? { code: error.code ?? "", status: error.status ?? 0, message: String(error.message ?? error), hint: error.hint ?? "" } : null;
