// Runs the cases of a client's script, as harness.py does: `node with_x.mjs NAME…` runs those functions `case_NAME`, and
// one line of JSON each on standard output says how it went. A case fails by throwing.

import assert from 'node:assert/strict'

export const HOST = process.env.OLLAMA_HOST
export const URL = `http://${HOST}`
export const REGISTRY = process.env.RSLLM_TEST_REGISTRY ?? ''
export const TINY = process.env.RSLLM_TEST_TINY
export const MODEL = 'smollm2'
export const [TOOLS, CALLER, THINKER, ENDLESS] = ['tools', 'caller', 'thinker', 'endless']
export const QUESTION = 'What is the capital of France?'
export const ANSWER = 'Paris'
export const TOO_LONG = 'hello there '.repeat(2000)
export const SUNNY = [{ role: 'user', content: 'What is the weather in Paris?' }]
export const WEATHER = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'Say what the weather is like.',
    parameters: {
      type: 'object',
      properties: { city: { type: 'string', enum: ['Paris', 'Rome'] } },
      required: ['city'],
      additionalProperties: false,
    },
  },
}

const CASE_SECONDS = 60
const IDLE_SECONDS = 10

export async function main(cases) {
  for (const name of process.argv.slice(2)) {
    const began = performance.now()
    let detail = null
    let timer
    try {
      const late = new Promise((_, reject) => {
        timer = setTimeout(() => reject(new Error(`the case took longer than ${CASE_SECONDS} s`)), CASE_SECONDS * 1000)
      })
      await Promise.race([cases[`case_${name}`](), late])
    } catch (error) {
      detail = error?.stack ?? String(error)
    } finally {
      clearTimeout(timer)
    }
    const seconds = Math.round((performance.now() - began) / 10) / 100
    process.stdout.write(JSON.stringify({ case: name, detail, seconds }) + '\n')
  }
}

/** Everything that an asynchronous iterator gives. */
export async function all(iterator) {
  const items = []
  for await (const item of iterator) items.push(item)
  return items
}

/** How many sequences the server has, running and queued. */
export async function working() {
  const { models } = await (await fetch(`${URL}/api/ps`)).json()
  return models.reduce((sum, model) => sum + model.running + model.queued, 0)
}

export async function waitUntilIdle() {
  const deadline = performance.now() + IDLE_SECONDS * 1000
  while ((await working()) > 0) {
    assert(performance.now() < deadline, 'the server goes on with what nobody waits for')
    await new Promise((done) => setTimeout(done, 20))
  }
}

/** Wait until the server has something to do. */
export async function waitUntilWorking() {
  while ((await working()) === 0) await new Promise((done) => setTimeout(done, 20))
}
