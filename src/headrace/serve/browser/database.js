// What the parts that work offline need of IndexedDB.

const VERSION = 1;

/** What a request of IndexedDB gives. */
export const given = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

export const ended = (transaction) =>
  new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error ?? new Error("the transaction was given up"));
  });

export function opened(name) {
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
  return given(request);
}

/** What other tabs and the disk can have of an error. */
export const problemOf = (error) =>
  error ? { code: error.code ?? "", status: error.status ?? 0, message: String(error.message ?? error), hint: error.hint ?? "" } : null;
