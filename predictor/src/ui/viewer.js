// Shows one report that the parent page sends. This document has no origin, no storage and no network, so that a report
// can neither read nor send data.
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
