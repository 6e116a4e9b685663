// An emulated GPU for a torch that was built without CUDA: device type cuda, memory and streams of its own, kernels of
// the CPU. The interpreter must load it before it uses a GPU; `torch_cuda.py` does.
#include "order.h"
#include "graph.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/extension.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <optional>

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;
using Lock = std::lock_guard<std::recursive_mutex>;

namespace {

thread_local DeviceIndex current_device = 0;
thread_local std::map<int, int64_t> current_streams;  // by device
thread_local bool is_in_kernel = false;               // its copies to the CPU and back are none of the program's
bool forbids_waits = false;
std::atomic<int64_t> num_launches = 0;                // operations, copies and replays of graphs that the program started
auto& pinned = *new std::map<size_t, size_t>;         // bytes, by the first one
auto& kernel_mutex = *new std::recursive_mutex;       // one operation at a time; never taken while one has `order::mutex`

int count_devices() {
  const char* number = std::getenv("EMULATED_GPUS");
  return number ? std::atoi(number) : 1;
}

order::StreamKey stream_on(int device) { return order::stream_key(device, current_streams[device]); }

// What the current stream of ``device`` records; else null.
graph::Graph* recording_on(int device) {
  Lock lock(order::mutex);
  const auto found = graph::recording.find(stream_on(device));
  return found == graph::recording.end() ? nullptr : found->second;
}

void refuse_while_recording(bool is_refused, const std::string& operation) {
  if (is_refused) graph::is_invalid = true;
  TORCH_CHECK(!is_refused, "CUDA error: operation not permitted when stream is capturing, but ", operation);
}

void count_use(const Tensor& tensor, bool writes, const std::string& operation) {
  if (is_in_kernel || !tensor.defined() || !tensor.is_cuda()) return;
  if (auto* recording = recording_on(tensor.device().index())) {
    if (writes) recording->keep_content(tensor);
    return;
  }
  Lock lock(order::mutex);
  order::count_use(tensor, stream_on(tensor.device().index()), writes, operation);
}

void host_waits(order::StreamKey stream) {
  refuse_while_recording(graph::is_recording_thread, "the host waits for a stream");
  std::vector<order::Copy> ended;
  Lock lock(order::mutex);
  order::host_waits(stream, ended);
}

// The host waits for the current stream of ``tensor``'s device, since it needs what ``operation`` gives.
void wait_for(const Tensor& tensor, const std::string& operation) {
  if (is_in_kernel) return;
  TORCH_CHECK(!forbids_waits, operation, " waits for the device");
  refuse_while_recording(recording_on(tensor.device().index()), operation + " waits for the device");
  host_waits(stream_on(tensor.device().index()));
}

bool is_pinned(const void* memory) {
  Lock lock(order::mutex);
  auto place = pinned.upper_bound(reinterpret_cast<size_t>(memory));
  if (place == pinned.begin()) return false;
  --place;
  return reinterpret_cast<size_t>(memory) < place->first + place->second;
}

void* allocate_bytes(size_t size) {
  void* memory = std::aligned_alloc(256, (std::max<size_t>(size, 1) + 255) / 256 * 256);
  std::memset(memory, 0x7f, size);  // 3.4e38 as float32
  return memory;
}

struct DeviceAllocator final : c10::Allocator {
  static void release(void* memory) {
    Lock lock(order::mutex);
    if (graph::keeps(memory)) return;
    order::release(memory);
    std::free(memory);
  }
  c10::DataPtr allocate(size_t size) override {
    void* memory = size ? allocate_bytes(size) : nullptr;
    if (memory) {
      auto* recording = recording_on(current_device);
      Lock lock(order::mutex);
      if (recording) recording->own(memory, size, stream_on(current_device));
      else order::allocate(memory, size, stream_on(current_device));
    }
    return {memory, memory, &release, Device(DeviceType::CUDA, current_device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, size_t size) const override { std::memcpy(target, source, size); }
} device_allocator;

struct PinnedAllocator final : c10::Allocator {
  static void release(void* memory) {
    Lock lock(order::mutex);
    pinned.erase(reinterpret_cast<size_t>(memory));
    std::free(memory);
  }
  c10::DataPtr allocate(size_t size) override {
    void* memory = allocate_bytes(size);
    Lock lock(order::mutex);
    pinned[reinterpret_cast<size_t>(memory)] = size;
    return {memory, memory, &release, Device(DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, size_t size) const override { std::memcpy(target, source, size); }
} pinned_allocator;

// What autograd's threads and guards of the current device and stream ask.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  Device getDevice() const override { return Device(DeviceType::CUDA, current_device); }
  void setDevice(Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(Device device) const noexcept override { current_device = device.index(); }
  Device exchangeDevice(Device device) const override {
    return Device(DeviceType::CUDA, std::exchange(current_device, device.index()));
  }
  Stream getStream(Device device) const override {
    return Stream(Stream::UNSAFE, device, current_streams[device.index()]);
  }
  Stream getDefaultStream(Device device) const override { return Stream(Stream::DEFAULT, device); }
  Stream exchangeStream(Stream stream) const override {
    auto& current = current_streams[stream.device_index()];
    return Stream(Stream::UNSAFE, stream.device(), std::exchange(current, stream.id()));
  }
  DeviceIndex deviceCount() const noexcept override { return count_devices(); }
  void record(void** event, const Stream& stream, const DeviceIndex, const c10::EventFlag) const override {
    Lock lock(order::mutex);
    if (!*event) *event = new order::Clock();
    *static_cast<order::Clock*>(*event) = order::clock_of(order::stream_key(stream.device_index(), stream.id()));
  }
  void block(void* event, const Stream& stream) const override {
    if (!event) return;
    Lock lock(order::mutex);
    auto& clock = order::clock_of(order::stream_key(stream.device_index(), stream.id()));
    order::merge(clock, *static_cast<order::Clock*>(event));
  }
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const Stream&) const override { return true; }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<order::Clock*>(event);
  }
};

struct Generator final : c10::GeneratorImpl {
  at::Generator on_cpu = at::detail::createCPUGenerator();
  explicit Generator(DeviceIndex device)
      : GeneratorImpl(Device(DeviceType::CUDA, device), c10::DispatchKeySet(c10::DispatchKey::CUDA)) {}
  void set_current_seed(uint64_t seed) override { on_cpu.set_current_seed(seed); }
  uint64_t current_seed() const override { return on_cpu.current_seed(); }
  uint64_t seed() override { return on_cpu.seed(); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  void set_state(const c10::TensorImpl& state) override {
    auto shared = c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(const_cast<c10::TensorImpl*>(&state));
    on_cpu.set_state(Tensor(std::move(shared)));
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return on_cpu.get_state().getIntrusivePtr(); }
  Generator* clone_impl() const override {
    auto clone = new Generator(device().index());
    clone->on_cpu = on_cpu.clone();
    return clone;
  }
};

// Torch asks once, when it is imported, whether there is CUDA, and keeps an object that says no; this takes its place.
struct Hooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void* memory) const override { return is_pinned(memory); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  at::Generator getNewGenerator(DeviceIndex device) const override {
    return at::make_generator<Generator>(device < 0 ? ::current_device : device);
  }
};

// Every operation but those below: its CPU kernel, on copies.
void run_on_cpu(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const auto& schema = operation.schema();
  const auto& name = schema.name();
  static const std::set<std::string> reads_sizes = {
      "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::equal",
  };
  const size_t num_arguments = schema.arguments().size(), first = stack->size() - num_arguments;
  auto each_tensor = [](const c10::IValue& value, auto handle) {
    if (value.isTensor()) handle(value.toTensor());
    else if (value.isTensorList()) for (const Tensor& tensor : value.toTensorVector()) handle(tensor);
    else if (value.isOptionalTensorList())
      for (const auto& tensor : value.toOptionalTensorVector()) if (tensor) handle(*tensor);
  };
  if (reads_sizes.count(name)) wait_for((*stack)[first].toTensor(), name);
  auto* recording = is_in_kernel ? nullptr : recording_on(current_device);
  num_launches += !is_in_kernel && !recording;
  std::vector<c10::IValue> recorded, written(num_arguments);
  Lock lock(kernel_mutex);
  for (size_t i = 0; i < num_arguments; ++i) {
    auto& value = (*stack)[first + i];
    const bool is_index = value.isOptionalTensorList();  // which may be on the CPU
    const auto* alias = schema.arguments()[i].alias_info();
    each_tensor(value, [&](const Tensor& tensor) {
      TORCH_CHECK(!tensor.defined() || tensor.is_cuda() || tensor.dim() == 0 || is_index,
                  "Expected all tensors to be on the same device, but found cuda and cpu in ", name);
      refuse_while_recording(recording && is_index && tensor.defined() && !tensor.is_cuda(), name + " copies an index");
      count_use(tensor, alias && alias->isWrite(), name);
    });
    if (recording) recorded.push_back(graph::argument(value));
    if (recording && alias && alias->isWrite()) written[i] = value;
    if (value.isGenerator()) {
      const auto generator = value.toGenerator();
      TORCH_CHECK(generator.device().is_cuda(), "Expected a 'cuda' device type for generator but found 'cpu' in ", name);
      value = static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->on_cpu;
      if (recording) {
        TORCH_CHECK(recording->has(value.toGenerator()),
                    "Attempt to increase offset for a CUDA generator not in capture mode, in ", name);
        recorded.back() = value;
      }
    }
  }
  const bool was_in_kernel = std::exchange(is_in_kernel, true);
  try {
    at::native::cpu_fallback(operation, stack, false, c10::DispatchKey::CPU);
  } catch (...) {
    is_in_kernel = was_in_kernel;
    throw;
  }
  is_in_kernel = was_in_kernel;
  const size_t num_results = schema.returns().size();
  for (size_t i = 0; i < num_results; ++i) {
    const auto* alias = schema.returns()[i].alias_info();
    if (alias && alias->isWrite()) continue;
    each_tensor((*stack)[stack->size() - num_results + i], [&](const Tensor& made) { count_use(made, true, name); });
  }
  if (!recording) return;
  for (size_t i = 0; i < num_arguments; ++i)  // which may have got their sizes now
    if (!written[i].isNone()) recorded[i] = graph::argument(written[i]);
  recording->add(operation, recorded, torch::jit::last(*stack, num_results));
}

// The same memory as a tensor of the CPU.
Tensor on_cpu(const Tensor& tensor) {
  if (tensor.is_cpu()) return tensor.detach();
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}

Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  c10::impl::ExcludeDispatchKeyGuard without_gradient(c10::autograd_dispatch_keyset);
  if (self.numel() == 0) return self;
  const bool to_host = self.is_cpu(), is_transfer = to_host || source.is_cpu();
  const Tensor &host = to_host ? self : source, &there = to_host ? source : self;
  auto* recording = is_in_kernel ? nullptr : recording_on(there.device().index());
  num_launches += !is_in_kernel && !recording;
  Lock lock(kernel_mutex);
  auto from = on_cpu(source).expand(self.sizes()), to = on_cpu(self);
  count_use(source, false, "copy_");
  count_use(self, true, "copy_");
  if (recording) {
    const bool waits = is_transfer && (!non_blocking || !is_pinned(host.data_ptr()));
    refuse_while_recording(waits, "a copy of memory that is not pinned");
    recording->add_copy(self, source);
    if (!to_host) to.copy_(from);
  } else if (is_in_kernel || !is_transfer) {
    to.copy_(from);
  } else if (!non_blocking || !is_pinned(host.data_ptr())) {
    if (non_blocking) TORCH_CHECK(!to_host, "a copy to the host that it does not wait for needs pinned memory");
    wait_for(there, "a copy of memory that is not pinned");
    to.copy_(from);
  } else {
    Tensor content = to_host ? from.to(to.dtype()).clone() : on_cpu(source).clone();
    if (!to_host) to.copy_(from);
    else if (to.is_non_overlapping_and_dense()) std::memset(to.data_ptr(), 0x7f, to.nbytes());
    Lock lock(order::mutex);
    order::copies.push_back({{stream_on(there.device().index())}, to_host, on_cpu(host), content});
  }
  return self;
}

Tensor copy_from(const Tensor& self, const Tensor& target, bool non_blocking) {
  Tensor written = target;
  return copy_(written, self, non_blocking);
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& target) {
  target.resize_(self.sizes());
  return copy_from(self, target, false);
}

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(device.value_or(Device(DeviceType::CUDA, current_device)));
  const c10::DispatchKeySet keys(c10::DispatchKey::CUDA);
  return at::detail::empty_generic(size, &device_allocator, keys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(device.value_or(Device(DeviceType::CUDA, current_device)));
  const c10::DispatchKeySet keys(c10::DispatchKey::CUDA);
  return at::detail::empty_strided_generic(size, stride, &device_allocator, keys, c10::dtype_or_default(dtype));
}

Tensor as_strided(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                  std::optional<c10::SymInt> offset) {
  auto view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(self.storage()),
                                                       self.key_set(), self.dtype());
  at::native::setStrided(view, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                         offset ? offset->expect_int() : self.storage_offset());
  return view;
}

Tensor reshape_alias(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return as_strided(self, size, stride, std::nullopt);
}

Tensor view(const Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

Tensor unfold(const Tensor& self, int64_t dimension, int64_t size, int64_t step) {
  return at::native::unfold(self, dimension, size, step);
}

const Tensor& resize_(const Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  if (self.sizes() == sizes) return self;
  auto* tensor = self.unsafeGetTensorImpl();
  const size_t needed = (c10::multiply_integers(sizes) + self.storage_offset()) * self.itemsize();
  auto& storage = tensor->unsafe_storage();
  if (storage.nbytes() < needed) {
    auto memory = device_allocator.allocate(needed);
    if (storage.nbytes()) std::memcpy(memory.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(memory));
    storage.set_nbytes(needed);
  }
  tensor->set_sizes_contiguous(sizes);
  return self;
}

at::Scalar read_scalar(const Tensor& self) {
  count_use(self, false, "item");
  wait_for(self, "item");
  Lock lock(kernel_mutex);
  c10::impl::ExcludeDispatchKeyGuard without_gradient(c10::autograd_dispatch_keyset);
  return at::_local_scalar_dense(on_cpu(self));
}

Tensor& set_storage(Tensor& self, at::Storage storage, c10::SymInt offset, c10::SymIntArrayRef size,
                    c10::SymIntArrayRef stride) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  at::native::setStrided(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), offset.expect_int());
  return self;
}

Tensor& set_whole_storage(Tensor& self, at::Storage storage) {
  const int64_t length = storage.nbytes() / self.itemsize();
  auto* tensor = self.unsafeGetTensorImpl();
  tensor->set_storage_keep_dtype(std::move(storage));
  tensor->set_storage_offset(0);
  tensor->set_sizes_contiguous({length});
  return self;
}

}  // namespace

C10_REGISTER_GUARD_IMPL(CUDA, Guard);

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("copy_", copy_);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("as_strided", as_strided);
  library.impl("view", view);
  library.impl("_reshape_alias", reshape_alias);
  library.impl("unfold", unfold);
  library.impl("resize_", resize_);
  library.impl("_local_scalar_dense", read_scalar);
  library.impl("set_.source_Storage", set_whole_storage);
  library.impl("set_.source_Storage_storage_offset", set_storage);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  new (const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks())) Hooks();
  c10::SetAllocator(DeviceType::CUDA, &device_allocator);
  const auto without_gil = pybind11::call_guard<pybind11::gil_scoped_release>();
  module.def("device_count", &count_devices);
  module.def("current_device", [] { return static_cast<int>(current_device); });
  module.def("exchange_device", [](int device) {
    TORCH_CHECK(device < count_devices(), "CUDA error: invalid device ordinal");
    return static_cast<int>(device < 0 ? current_device : std::exchange(current_device, device));
  });
  module.def("current_stream", [](int device) { return current_streams[device]; });
  module.def("set_stream", [](int device, int64_t stream) { current_streams[device] = stream; });
  module.def("stream_waits", [](int device, int64_t waiting, int other_device, int64_t stream) {
    Lock lock(order::mutex);
    refuse_while_recording(graph::recording.count(order::stream_key(device, waiting)) ||
                               graph::recording.count(order::stream_key(other_device, stream)),
                           "one stream waits for another, of which one records");
    order::stream_waits(order::stream_key(device, waiting), order::stream_key(other_device, stream));
  }, without_gil);
  module.def("host_waits", [](int device, int64_t stream) { host_waits(order::stream_key(device, stream)); }, without_gil);
  module.def("most_memory", [](int device) {
    Lock lock(order::mutex);
    return order::most_in_use[device];
  });
  module.def("reset_most_memory", [](int device) {
    Lock lock(order::mutex);
    order::most_in_use[device] = order::in_use[device];
  });
  module.def("record_stream", [](const Tensor& tensor, int device, int64_t stream) {
    Lock lock(order::mutex);
    auto* block = tensor.numel() ? graph::block_of(reinterpret_cast<size_t>(tensor.data_ptr())) : nullptr;
    if (block) block->second.recorded.insert(order::stream_key(device, stream));
  }, without_gil);
  module.def("num_uses", [](int device, int64_t stream) {
    Lock lock(order::mutex);
    const auto key = order::stream_key(device, stream);
    return order::clock_of(key)[key];
  }, without_gil);
  module.def("has_waited", [](int device, int64_t stream, int64_t number) {
    Lock lock(order::mutex);
    return order::host[order::stream_key(device, stream)] >= number;
  }, without_gil);
  module.def("forbid_waits", [](bool forbids) { forbids_waits = forbids; });
  module.def("forbids_waits", [] { return forbids_waits; });
  module.def("num_launches", [] { return num_launches.load(); });
  pybind11::class_<graph::Graph>(module, "Graph")
      .def(pybind11::init())
      .def("begin", [](graph::Graph& self) { self.begin(stream_on(current_device)); }, without_gil)
      .def("end", &graph::Graph::end, without_gil)
      .def("register_generator", [](graph::Graph& self, at::Generator generator) {
        self.generators.push_back(static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->on_cpu);
      })
      .def("replay", [](graph::Graph& self) {
        Lock lock(kernel_mutex);
        ++num_launches;
        const bool was_in_kernel = std::exchange(is_in_kernel, true);
        try {
          self.replay(stream_on(current_device), [](const void* memory) { return is_pinned(memory); });
        } catch (...) {
          is_in_kernel = was_in_kernel;
          throw;
        }
        is_in_kernel = was_in_kernel;
      }, without_gil);
  module.def("is_recording", [] { return recording_on(current_device) != nullptr; });
  module.def("register_memory", [](size_t memory, size_t size) {
    Lock lock(order::mutex);
    return pinned.emplace(memory, size).second ? 0 : 712;  // cudaErrorHostMemoryAlreadyRegistered
  }, without_gil);
  module.def("unregister_memory", [](size_t memory) {
    Lock lock(order::mutex);
    return pinned.erase(memory) ? 0 : 713;  // cudaErrorHostMemoryNotRegistered
  }, without_gil);
}
