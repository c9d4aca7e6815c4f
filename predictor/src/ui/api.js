/** The service's HTTP API. Addresses are relative to the page, so that it works behind a proxy that serves it below a
 * path.
 */

/** An error response, or no response. */
export class Refused extends Error {
  /** @param {number} status 0 if there was no response @param {string} slug @param {string} message */
  constructor(status, slug, message) {
    super(message);
    this.status = status;
    this.slug = slug;
  }
}

/** The path of a job, or of a resource below it. @param {string} job @param {string} [rest] */
export const ofJob = (job, rest = '') => `v1/jobs/${encodeURIComponent(job)}${rest}`;

/** Reads a JSON resource. @param {string} path @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function read(path, signal) {
  return (await ask('GET', path, { signal })).json();
}

/**
 * Sends a request. Throws `Refused` with a message if it fails.
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
      // Another predictor serves the job: the browser may not follow the redirect, so the page shows a link instead.
      redirect: 'manual',
      cache: 'no-store',
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused(0, 'silent', 'The predictor does not respond.');
  }
  if (response.type === 'opaqueredirect') throw new Refused(307, 'elsewhere', 'Another predictor serves this job.');
  if (!response.ok) throw await refusal(response);
  return response;
}

/** The error of a problem+json response. @param {Response} response */
export async function refusal(response) {
  const problem = await response.json().catch(() => null);
  const slug = String(problem?.type ?? '').replace('urn:evenstep:problem:', '');
  // A rejected operator token is shown in its dialog. The form to sign in shows errors itself.
  if (response.status === 401 && slug !== 'not-operator' && !response.url.endsWith('/v1/session')) {
    // After the view has shown the error, which the form replaces.
    setTimeout(() => dispatchEvent(new CustomEvent('token-required', { detail: problem?.detail ?? '' })));
  }
  const words = problem ? `${problem.title}: ${problem.detail}` : `The predictor responded with status ${response.status}.`;
  return new Refused(response.status, slug, words);
}
