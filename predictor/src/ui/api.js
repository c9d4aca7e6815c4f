/** The service's HTTP interface. Addresses are relative to the page, so it works behind a proxy that puts it under a path. */

/** A request that was refused, or never answered. */
export class Refused extends Error {
  /** @param {number} status 0 where there was no answer @param {string} slug @param {string} message */
  constructor(status, slug, message) {
    super(message);
    this.status = status;
    this.slug = slug;
  }
}

/** The path of a job, or of something of it. @param {string} job @param {string} [rest] */
export const ofJob = (job, rest = '') => `v1/jobs/${encodeURIComponent(job)}${rest}`;

/** Reads JSON. @param {string} path @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function read(path, signal) {
  return (await ask('GET', path, { signal })).json();
}

/**
 * Asks, and says in words why not.
 * @param {string} method
 * @param {string} path
 * @param {{ signal?: AbortSignal, body?: any, token?: string | null }} [options]
 * @returns {Promise<Response>}
 */
export async function ask(method, path, { signal, body, token } = {}) {
  /** @type {Record<string, string>} */
  const headers = {};
  if (body !== undefined) headers['content-type'] = 'application/json';
  if (token) headers.authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), {
      method,
      headers,
      signal,
      body: body === undefined ? undefined : JSON.stringify(body),
      // A job of another predictor: the browser may not follow to there, the page links to it instead.
      redirect: 'manual',
      cache: 'no-store',
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused(0, 'silent', 'The predictor does not answer.');
  }
  if (response.type === 'opaqueredirect') throw new Refused(307, 'elsewhere', 'Another predictor serves this job.');
  if (!response.ok) throw await refusal(response);
  return response;
}

/** A problem in its own words. @param {Response} response */
export async function refusal(response) {
  const problem = await response.json().catch(() => null);
  const slug = String(problem?.type ?? '').replace('urn:evenstep:problem:', '');
  const words = problem ? `${problem.title}: ${problem.detail}` : `The predictor answered ${response.status}.`;
  return new Refused(response.status, slug, words);
}
