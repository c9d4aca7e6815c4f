// Shows one report that the page above hands over. This document has no origin, no storage and no network: whatever is in the
// report stays in it.
addEventListener(
  'message',
  (event) => {
    if (event.source !== parent || typeof event.data?.report !== 'string') return;
    document.open();
    document.write(event.data.report);
    document.close();
  },
  { once: true },
);
