// What every section needs of Preact, its hooks and htm, from one place.

import { createElement } from "./preact.js";
import htm from "./htm.js";

export { Component, Fragment, createContext, createPortal, render } from "./preact.js";
export { useCallback, useContext, useEffect, useErrorBoundary, useId, useImperativeHandle, useLayoutEffect, useMemo, useReducer, useRef, useState } from "./hooks.js";

export const h = createElement;
export const html = htm.bind(createElement);
