// What a browser keeps for the page. It may be told not to, or have no room: then it is kept until the page is left.

/** `place` gives localStorage or sessionStorage, or throws. `set` of null forgets. */
export function stored(place) {
  const here = new Map();
  return {
    get(name) {
      if (here.has(name)) return here.get(name);
      try {
        return place().getItem(name);
      } catch {
        return null;
      }
    },
    set(name, text) {
      try {
        if (text === null) place().removeItem(name);
        else place().setItem(name, text);
        here.delete(name);
      } catch {
        here.set(name, text);
      }
    },
  };
}

export const kept = stored(() => localStorage);
