// Ollama's own client for JavaScript.

import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { readFile } from 'node:fs/promises'

import { Ollama } from 'ollama'

import * as cases from './with_ollama.mjs'
import {
  all, ANSWER, CALLER, ENDLESS, main, MODEL, QUESTION, REGISTRY, SUNNY, THINKER, TINY, TOOLS, URL,
  waitUntilIdle, WEATHER, working,
} from './harness.mjs'

const ollama = new Ollama({ host: URL })
const ASK = [{ role: 'user', content: QUESTION }]
const GREEDY = { temperature: 0, num_predict: 12 }
const asked = { model: MODEL, messages: ASK, options: GREEDY }

export async function case_chat() {
  const reply = await ollama.chat(asked)
  assert(reply.message.content.includes(ANSWER))
  assert.equal(reply.done, true)
  assert(reply.eval_count > 0 && reply.prompt_eval_count > 0)
  assert(reply.created_at instanceof Date || !Number.isNaN(Date.parse(reply.created_at)))
}

export async function case_stream() {
  const parts = await all(await ollama.chat({ ...asked, stream: true }))
  const whole = await ollama.chat(asked)
  assert.equal(parts.map((part) => part.message.content).join(''), whole.message.content)
  assert.deepEqual(parts.map((part) => part.done), [...Array(parts.length - 1).fill(false), true])
}

export async function case_generate() {
  const reply = await ollama.generate({ model: MODEL, prompt: QUESTION, options: GREEDY })
  assert(reply.response.includes(ANSWER) && reply.context.length > 0)
  const parts = await all(await ollama.generate({ model: MODEL, prompt: QUESTION, options: GREEDY, stream: true }))
  assert.equal(parts.map((part) => part.response).join(''), reply.response)
  const raw = await ollama.generate({ model: MODEL, prompt: 'The capital of France is', raw: true, options: GREEDY })
  assert(raw.response.includes(ANSWER))
}

export async function case_structured() {
  const schema = {
    type: 'object',
    properties: { name: { type: 'string' }, age: { type: 'integer' } },
    required: ['name', 'age'],
  }
  const messages = [{ role: 'user', content: 'Describe Ann, who is 7 years old, as JSON.' }]
  const options = { temperature: 0, num_predict: 80 }
  const reply = await ollama.chat({ model: MODEL, messages, format: schema, options })
  assert(Number.isInteger(JSON.parse(reply.message.content).age))
  const json = await ollama.chat({ model: MODEL, messages, format: 'json', options: { ...options, num_predict: 60 } })
  assert(json.message.content.trimStart().startsWith('{'))
}

export async function case_options_and_logprobs() {
  const short = await ollama.chat({ ...asked, options: { temperature: 0, num_predict: 3 } })
  assert.deepEqual([short.eval_count, short.done_reason], [3, 'length'])
  const reply = await ollama.chat({ ...asked, logprobs: true, top_logprobs: 2 })
  assert.equal(reply.logprobs.length, reply.eval_count)
  assert(reply.logprobs.every((entry) => entry.logprob <= 0 && entry.top_logprobs.length === 2))
}

export async function case_embed() {
  const { embeddings } = await ollama.embed({ model: MODEL, input: ['the cat sat', 'tax law'] })
  assert.deepEqual(embeddings.map((vector) => vector.length), [576, 576])
  assert.equal((await ollama.embeddings({ model: MODEL, prompt: 'one' })).embedding.length, 576)
}

export async function case_list_show_ps_version() {
  const { models } = await ollama.list()
  assert(models.some((model) => model.name === `${MODEL}:latest` && model.details.family === 'llama'))
  const shown = await ollama.show({ model: MODEL })
  assert.equal(shown.model_info['general.architecture'], 'llama')
  assert(shown.capabilities.includes('completion'))
  await ollama.generate({ model: MODEL, prompt: '' })
  const running = (await ollama.ps()).models
  assert(running.length >= 1 && running[0].context_length === 2048)
  assert.match((await ollama.version()).version, /^\d+\.\d+/)
}

export async function case_create_copy_delete() {
  const made = await all(
    await ollama.create({ model: 'of-npm:made', from: MODEL, system: 'Say yes.', parameters: { num_predict: 2 }, stream: true }),
  )
  assert.equal(made.at(-1).status, 'success')
  assert((await ollama.chat({ model: 'of-npm:made', messages: ASK })).eval_count <= 2)
  await ollama.copy({ source: 'of-npm:made', destination: 'of-npm:copied' })
  for (const model of ['of-npm:made', 'of-npm:copied']) await ollama.delete({ model })
  await assert.rejects(ollama.delete({ model: 'of-npm:made' }), { status_code: 404 })
}

export async function case_registry() {
  const name = `${REGISTRY}/someone/of-npm:v1`
  const bytes = await readFile(TINY)
  const digest = `sha256:${createHash('sha256').update(bytes).digest('hex')}`
  const sent = await fetch(`${URL}/api/blobs/${digest}`, { method: 'POST', body: bytes })
  assert(sent.ok, await sent.text())
  await ollama.create({ model: name, files: { 'tiny.gguf': digest } })
  assert.equal((await ollama.push({ model: name, insecure: true })).status, 'success')
  await ollama.delete({ model: name })
  const steps = await all(await ollama.pull({ model: name, insecure: true, stream: true }))
  assert.deepEqual([steps[0].status, steps.at(-1).status], ['pulling manifest', 'success'])
  assert(steps.some((step) => step.digest === digest && step.completed === bytes.length && step.total === bytes.length))
  const options = { num_predict: 3, ignore_eos: true } // its weights are random
  const reply = await ollama.generate({ model: name, prompt: 'the', options, keep_alive: 0 })
  assert.equal(reply.eval_count, 3)
  await ollama.delete({ model: name })
}

export async function case_errors() {
  await assert.rejects(ollama.chat({ ...asked, model: 'nosuch' }), { name: 'ResponseError', status_code: 404 })
  await assert.rejects(ollama.chat({ ...asked, model: 'nosuch', stream: true }), { status_code: 404 })
  await assert.rejects(ollama.chat({ ...asked, options: { temperature: -1 } }), (error) => {
    assert.equal(error.status_code, 400)
    assert.match(error.message, /temperature/)
    return true
  })
  await assert.rejects(ollama.chat({ ...asked, tools: [WEATHER] }), /does not support tools/)
  await assert.rejects(ollama.pull({ model: '127.0.0.1:9/someone/thing', insecure: true }), /private address/)
}

export async function case_aborted() {
  await waitUntilIdle()
  const stream = await ollama.generate({ model: ENDLESS, prompt: 'Once', stream: true })
  let seen = 0
  await assert.rejects(async () => {
    for await (const _ of stream) {
      seen += 1
      if (seen === 3) {
        assert.equal(await working(), 1)
        stream.abort()
      }
    }
  }, { name: 'AbortError' })
  await waitUntilIdle()
  const other = new Ollama({ host: URL })
  const asking = other.generate({ model: ENDLESS, prompt: 'Once', stream: true })
  for await (const _ of await asking) break
  other.abort()
  await waitUntilIdle()
  assert((await ollama.chat(asked)).message.content.includes(ANSWER))
}

export async function case_tools() {
  const reply = await ollama.chat({ model: CALLER, messages: SUNNY, tools: [WEATHER] })
  const [call] = reply.message.tool_calls
  assert.equal(call.function.name, 'get_weather')
  assert(['Paris', 'Rome'].includes(call.function.arguments.city) && reply.message.content === '')
  const parts = await all(await ollama.chat({ model: CALLER, messages: SUNNY, tools: [WEATHER], stream: true }))
  assert.equal(parts.flatMap((part) => part.message.tool_calls ?? []).length, 1)
  const messages = [...SUNNY, reply.message, { role: 'tool', tool_name: 'get_weather', content: 'sunny, 21 degrees' }]
  const answer = await ollama.chat({ model: TOOLS, messages, tools: [WEATHER], options: GREEDY })
  assert(answer.message.content.length > 0)
}

export async function case_thinking() {
  const reply = await ollama.chat({ model: THINKER, messages: ASK, think: true })
  assert.match(reply.message.thinking, /asks/)
  assert(reply.message.content.endsWith('Paris.') && !reply.message.content.includes('<think>'))
  const parts = await all(await ollama.chat({ model: THINKER, messages: ASK, think: true, stream: true }))
  assert.equal(parts.map((part) => part.message.thinking ?? '').join(''), reply.message.thinking)
  await assert.rejects(ollama.chat({ ...asked, think: true }), /does not support thinking/)
}

await main(cases)
