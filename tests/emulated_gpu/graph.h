// Graphs of the emulated GPU: what a stream records instead of doing it, and what is done again by each replay.
//
// An operation that is recorded is known by addresses, as in CUDA: replayed, it reads and writes the memory that its
// tensors had then, whatever has become of them. That memory must still be there. While a stream records, operations are
// computed, so that the next ones find sizes and possible indices; at the end memory from before has its content again.
// What is allocated meanwhile belongs to the graph.
#pragma once

#include "order.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/InferenceMode.h>

#include <functional>
#include <memory>

namespace graph {

using Lock = std::lock_guard<std::recursive_mutex>;

struct Place {  // memory of the GPU that an operation uses
  at::Tensor tensor;  // over it, as one of the CPU
  bool writes;
};

// The same memory as a tensor of the CPU that does not own it; a number on the CPU by its value, as kernels are given it.
inline at::Tensor address(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (tensor.is_cpu()) return tensor.detach().clone();
  auto options = tensor.options().device(at::kCPU).requires_grad(false);
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), options);
}

inline c10::IValue argument(const c10::IValue& value) {
  if (value.isTensor()) return address(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& each : value.toTensorVector()) list.push_back(address(each));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& each : value.toOptionalTensorVector())
      list.push_back(each ? std::optional(address(*each)) : std::nullopt);
    return list;
  }
  if (value.isDevice()) return c10::Device(at::kCPU);
  return value;
}

inline void each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& handle) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) handle(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& each : value.toTensorVector()) if (each.defined()) handle(each);
  } else if (value.isOptionalTensorList()) {
    for (const auto& each : value.toOptionalTensorVector()) if (each && each->defined()) handle(*each);
  }
}

class Graph;
inline auto& recording = *new std::map<order::StreamKey, Graph*>;
inline auto& owned = *new std::map<size_t, bool>;  // memory of graphs, by its first byte: whether a tensor has it, too
inline thread_local bool is_recording_thread = false;
inline thread_local bool is_invalid = false;  // something was refused in the recording

// Whether ``memory``, which no tensor uses any more, still belongs to a graph.
inline bool keeps(void* memory) {
  auto found = owned.find(reinterpret_cast<size_t>(memory));
  if (found == owned.end()) return false;
  found->second = false;
  return true;
}

inline std::pair<const size_t, order::Block>* block_of(size_t memory) {
  auto place = order::blocks.upper_bound(memory);
  return place == order::blocks.begin() ? nullptr : &*std::prev(place);
}

class Graph {
 public:
  std::vector<at::Generator> generators;  // of the CPU, from which replays draw on

  Graph() = default;
  ~Graph() {
    Lock lock(order::mutex);
    for (const auto& [memory, size] : own_) {
      const bool is_used = owned[memory];
      owned.erase(memory);
      if (is_used) continue;
      order::release(reinterpret_cast<void*>(memory));
      std::free(reinterpret_cast<void*>(memory));
    }
  }

  void begin(order::StreamKey stream) {
    Lock lock(order::mutex);
    TORCH_CHECK(recording.emplace(stream, this).second, "the stream records already");
    stream_ = stream;
    is_recording_thread = true;
    is_invalid = false;
    for (const auto& each : generators) states_.push_back(each.get_state());
  }

  void end() {
    Lock lock(order::mutex);
    recording.erase(stream_);
    is_recording_thread = false;
    for (const auto& [memory, content] : contents_)
      if (order::blocks.count(memory)) std::memcpy(reinterpret_cast<void*>(memory), content.data(), content.size());
    contents_.clear();
    for (const auto& [memory, size] : own_) std::memset(reinterpret_cast<void*>(memory), 0x7f, size);
    for (size_t i = 0; i < generators.size(); ++i) generators[i].set_state(states_[i]);
    states_.clear();
    TORCH_CHECK(!is_invalid, "CUDA error: operation failed due to a previous error during capture");
  }

  void own(void* memory, size_t size, order::StreamKey stream) {
    const size_t begin = reinterpret_cast<size_t>(memory);
    owned[begin] = true;
    own_.emplace_back(begin, size);
    order::blocks[begin] = {stream, {}, size};
    order::count_bytes(stream, size);
  }

  // Before ``tensor`` is written to: what its memory holds, unless it is the graph's own.
  void keep_content(const at::Tensor& tensor) {
    Lock lock(order::mutex);
    auto* block = tensor.numel() ? block_of(reinterpret_cast<size_t>(tensor.data_ptr())) : nullptr;
    if (!block || owned.count(block->first) || contents_.count(block->first)) return;
    const auto* memory = reinterpret_cast<const char*>(block->first);
    contents_[block->first].assign(memory, memory + block->second.size);
  }

  bool has(const at::Generator& generator) const {
    return std::find(generators.begin(), generators.end(), generator) != generators.end();
  }

  void add(const c10::OperatorHandle& operation, std::vector<c10::IValue> arguments, at::ArrayRef<c10::IValue> results) {
    const auto& schema = operation.schema();
    std::vector<Place> places;
    for (size_t i = 0; i < arguments.size(); ++i) {
      const auto* alias = schema.arguments()[i].alias_info();
      each_tensor(arguments[i], [&](const at::Tensor& each) { places.push_back({each, alias && alias->isWrite()}); });
    }
    std::vector<c10::IValue> made;
    for (size_t i = 0; i < results.size(); ++i) {
      const auto* alias = schema.returns()[i].alias_info();
      made.push_back(alias && alias->isWrite() ? c10::IValue() : argument(results[i]));
      each_tensor(made.back(), [&](const at::Tensor& each) { places.push_back({each, true}); });
    }
    steps_.push_back([=, this](order::StreamKey stream) {
      count(places, stream, schema.name());
      torch::jit::Stack stack(arguments.begin(), arguments.end());
      operation.callBoxed(stack);
      for (size_t i = 0; i < made.size(); ++i) {
        if (made[i].isTensor() && made[i].toTensor().defined()) made[i].toTensor().copy_(stack[i].toTensor());
        if (!made[i].isTensorList()) continue;
        const auto to = made[i].toTensorVector(), from = stack[i].toTensorVector();
        for (size_t j = 0; j < to.size(); ++j) at::Tensor(to[j]).copy_(from[j]);
      }
    });
  }

  void add_copy(const at::Tensor& target, const at::Tensor& source) {
    const bool to_host = target.is_cpu(), is_transfer = to_host || source.is_cpu();
    auto blob = [](const at::Tensor& tensor) {
      return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
    };
    const at::Tensor to = blob(target), from = blob(source);
    steps_.push_back([=, this](order::StreamKey stream) {
      if (!to_host) count({{to, true}}, stream, "copy_");
      if (to_host || !is_transfer) count({{from, false}}, stream, "copy_");
      if (!to_host) to.copy_(from.expand(to.sizes()));
      if (!is_transfer) return;
      const at::Tensor& host = to_host ? to : from;
      TORCH_CHECK(is_pinned_(host.data_ptr()), "a graph copies memory that is no longer pinned");
      at::Tensor content = from.to(host.dtype()).expand(host.sizes()).clone();
      if (to_host && to.is_non_overlapping_and_dense()) std::memset(to.data_ptr(), 0x7f, to.nbytes());
      Lock lock(order::mutex);
      order::copies.push_back({{stream}, to_host, host, content});
    });
  }

  void replay(order::StreamKey stream, std::function<bool(const void*)> is_pinned) {
    is_pinned_ = std::move(is_pinned);
    const c10::InferenceMode anything_may_be_written;
    for (const auto& step : steps_) step(stream);
  }

 private:
  void count(const std::vector<Place>& places, order::StreamKey stream, const std::string& name) {
    Lock lock(order::mutex);
    for (const auto& [tensor, writes] : places) {
      if (tensor.numel() == 0 || tensor.storage().unsafeGetStorageImpl()->allocator()) continue;  // a number's value
      const size_t memory = reinterpret_cast<size_t>(tensor.data_ptr());
      const auto* block = block_of(memory);
      TORCH_CHECK(block && memory < block->first + block->second.size,
                  "a graph uses memory that was freed since it was recorded, in ", name);
      order::count_use(tensor, stream, writes, "a graph's " + name);
    }
  }

  order::StreamKey stream_ = 0;
  std::vector<std::function<void(order::StreamKey)>> steps_;
  std::vector<std::pair<size_t, size_t>> own_;
  std::map<size_t, std::vector<char>> contents_;
  std::vector<at::Tensor> states_;
  std::function<bool(const void*)> is_pinned_;
};

}  // namespace graph
