// Places in the log as they are written on the page.

/** `orders/0/7`; an offset that is not known yet is left out. */
export const placeText = (place) => (place ? [place.topic, place.partition, place.offset].filter((one) => one !== null && one !== undefined && one !== -1).join("/") : "–");
